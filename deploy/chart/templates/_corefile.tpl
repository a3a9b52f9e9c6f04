{{/* The Corefile of either recipe. */}}
{{- define "federation.corefile" -}}
{{- $dns := .Values.dns -}}
{{- if eq $dns.recipe "cluster" -}}
.:53 {
    {{- include "federation.server" . | nindent 4 }}
    kubernetes {{ $dns.clusterDomain }} in-addr.arpa ip6.arpa {
        pods insecure
        ttl 30
        fallthrough in-addr.arpa ip6.arpa
    }
    {{- include "federation.blocks" . | trim | nindent 4 }}
    forward . {{ join " " $dns.upstream }}
    cache 30
    loop
}
{{- else -}}
{{- $zones := list -}}
{{- range $dns.owners -}}
{{- $zones = concat $zones .zones -}}
{{- end -}}
{{ range $zones | uniq }}{{ . }}:53 {{ end }}{
    {{- include "federation.server" . | nindent 4 }}
    {{- include "federation.blocks" . | trim | nindent 4 }}
}
# Endpoints that are host names are looked up here, and nobody else asks here.
.:53 {
    errors
    acl {
        allow net 127.0.0.1/32
        block
    }
    forward . {{ join " " $dns.upstream }}
    cache 30
}
{{- end -}}
{{- end -}}

{{/* What a server block has beside the plugins that answer. */}}
{{- define "federation.server" -}}
errors
health {
    lameduck 5s
}
ready
prometheus :9153
reload
bufsize 1232
loadbalance
{{- end -}}

{{/* One block for each owner. */}}
{{- define "federation.blocks" -}}
{{- $dns := .Values.dns -}}
{{- range $i, $owner := $dns.owners }}
{{- $tls := ternary (printf "/etc/federation/tls-%d" $i) "/etc/federation/tls" (not (empty .secretName)) }}
federation {{ join " " .zones }} {
    owner {{ join " " .addresses }}
    {{- if and $dns.identity.spire (not .secretName) }}
    {{- if not .ids }}
    {{- fail "dns.owners: an owner needs ids with dns.identity.spire: a certificate of SPIRE says which SPIFFE ID it is for, and no host name" }}
    {{- end }}
    spiffe {{ prepend $dns.identity.trustDomains (include "federation.workloadAPI" $) | join " " }}
    {{- else }}
    tls {{ $tls }}/tls.crt {{ $tls }}/tls.key {{ $tls }}/ca.crt
    {{- end }}
    {{- with .ids }}
    owner_id {{ join " " . }}
    {{- end }}
    {{- if $dns.persist }}
    {{- /* Behind one address, different server names are different owners. */}}
    {{- $file := index .addresses 0 }}
    {{- range .properties }}
    {{- if hasPrefix "tls_servername " . }}
    {{- $file = printf "%s-%s" $file (trimPrefix "tls_servername " . | trim) }}
    {{- end }}
    {{- end }}
    persist /var/lib/federation/{{ regexReplaceAll "[^A-Za-z0-9.-]+" $file "-" }}
    {{- end }}
    {{- if $dns.status }}
    status localhost:9154
    {{- end }}
    {{- $limit := include "federation.maxCatalog" (list $ "dns" (len $dns.owners)) }}
    {{- range .properties }}
    {{- if hasPrefix "max_catalog " . }}
    {{- $limit = "" }}
    {{- end }}
    {{ . }}
    {{- end }}
    {{- with $limit }}
    max_catalog {{ . }}
    {{- end }}
}
{{- end }}
{{- end -}}
