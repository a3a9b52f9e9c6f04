{{/* The configuration of the owner. */}}
{{- define "federation.owner" -}}
listen: ":8008"
metrics: ":9155"
{{- if .Values.owner.status }}
status: "localhost:9156"
{{- end }}
identity:
  {{- include "federation.identity" (list . "owner") | nindent 2 }}
allow:
  ids:
    {{- toYaml .Values.owner.allow | nindent 4 }}
catalogs:
  - sources:
      - kubernetes:
          {{- toYaml .Values.owner.kubernetes | nindent 10 }}
      {{- if .Values.owner.registration.enabled }}
      - registration:
          listen: ":8009"
          rules: /etc/federation/config/registrations.yaml
          {{- with .Values.owner.registration.settings }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
      {{- end }}
  {{- range .Values.owner.relays }}
  {{- $defaults := dict "persist" (printf "/var/cache/federation/%s.catalog" .server_name) }}
  {{- with include "federation.maxCatalog" (list $ "owner" (len $.Values.owner.relays | add1)) }}
  {{- $defaults = set $defaults "max_catalog" . }}
  {{- end }}
  - {{ merge (dict "relay" (merge (dict) .relay $defaults)) . | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end -}}

{{/* "relay" where the owner relays others, by the values or by a configuration of its own. */}}
{{- define "federation.relay" -}}
{{- if or .Values.owner.relays (contains "relay:" .Values.owner.config) -}}relay{{- end -}}
{{- end -}}

{{/* "etcd" where what is registered is in etcd, "memory" where it is in memory, or nothing. */}}
{{- define "federation.store" -}}
{{- with .Values.owner.registration -}}
{{- if and .enabled (dig "store" "etcd" "" .settings) -}}etcd{{- else if .enabled -}}memory{{- end -}}
{{- end -}}
{{- end -}}

{{/* The kinds of endpoints that the owner looks for, with commas on both sides. */}}
{{- define "federation.endpoints" -}}
{{- $kubernetes := .Values.owner.kubernetes -}}
,{{ join "," ($kubernetes.endpoints | default (list "gateway" "load-balancer" "external-ips" "node-ports" (ternary "pods" "" (eq ($kubernetes.pods | default "") "routable")))) }},
{{- end -}}

{{/* What the owner may do where no namespace is named, or in all of them. */}}
{{- define "federation.clusterRules" -}}
{{- $endpoints := include "federation.endpoints" . -}}
{{- $gateway := list "gateways" "httproutes" "grpcroutes" "tlsroutes" "tcproutes" -}}
{{- if contains ",node-ports," $endpoints -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{ end -}}
{{- if contains ",gateway," $endpoints -}}
- apiGroups: [gateway.networking.k8s.io] # a route may be in another namespace than the Service
  resources: {{ toJson $gateway }}
  verbs: [list, watch]
{{ end -}}
{{- end -}}

{{/* What the owner may do in the namespaces whose Services it exports. */}}
{{- define "federation.namespaceRules" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
{{- if regexMatch ",(node-ports|pods)," (include "federation.endpoints" .) }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end }}
- apiGroups: [multicluster.x-k8s.io]
  resources: [serviceexports]
  verbs: [list, watch]
- apiGroups: [multicluster.x-k8s.io] # conditions
  resources: [serviceexports/status]
  verbs: [patch]
{{- end -}}
