{{/* The labels of an object of a component, "owner" or "dns". Argument: (list . component). */}}
{{- define "federation.labels" -}}
{{ include "federation.selector" . }}
app.kubernetes.io/part-of: coredns-federation
{{- end -}}

{{/* The labels that tell the pods of a component from others; they never change. */}}
{{- define "federation.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end -}}

{{/* An image by its digest, else by its tag. Argument: (list values path). */}}
{{- define "federation.image" -}}
{{- $image := index . 0 -}}
{{- $path := index . 1 -}}
{{- if not $image.repository -}}
{{- fail (printf "%s.repository is required: push the image that make image built to a registry of yours, and name it here" $path) -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else if $image.tag -}}
{{ $image.repository }}:{{ $image.tag }}
{{- else -}}
{{- fail (printf "%s.digest or %s.tag is required" $path $path) -}}
{{- end -}}
{{- end -}}

{{/* What every container may do: nothing. Argument: a capability to add, or "". */}}
{{- define "federation.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- with . }}
    add: [{{ . }}]
    {{- end }}
{{- end -}}

{{/* Where the pods of a component run, and as whom. Argument: (list . component). */}}
{{- define "federation.pod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index $root.Values $component -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "federation.selector" (list $root $component) | nindent 8 }}
  {{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "federation.selector" (list $root $component) | nindent 14 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The name of the Secret that a component has its certificate from. */}}
{{- define "federation.secretName" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
{{ $values.identity.secretName | default (printf "%s-%s-tls" $root.Release.Name (index . 1)) }}
{{- end -}}

{{/* The address of the Workload API of SPIRE's agent, as containers see it. */}}
{{- define "federation.workloadAPI" -}}
unix:///spiffe-workload-api/{{ .Values.spire.socket }}
{{- end -}}

{{/*
Where a component's certificate comes from: a folder with tls.crt, tls.key and ca.crt,
or one with the socket of the Workload API.
*/}}
{{- define "federation.identityVolumes" -}}
{{- $root := index . 0 -}}
{{- $identity := (index $root.Values (index . 1)).identity -}}
{{- if gt (len (compact (list $identity.secretName (ternary "spire" "" $identity.spire) (ternary "volume" "" (not (empty $identity.volume)))))) 1 -}}
{{- fail (printf "%s.identity: set one of secretName, spire and volume" (index . 1)) -}}
{{- end -}}
{{- if and $identity.trustDomains (not $identity.spire) -}}
{{- fail (printf "%s.identity.trustDomains is for certificates of SPIRE: set %s.identity.spire" (index . 1) (index . 1)) -}}
{{- end -}}
{{- if $identity.spire }}
- name: spire
  csi:
    driver: {{ $root.Values.spire.driver }}
    readOnly: true
{{- else }}
- name: tls
  {{- if $identity.volume }}
  {{- toYaml $identity.volume | nindent 2 }}
  {{- else }}
  secret:
    secretName: {{ include "federation.secretName" . }}
    defaultMode: 0440
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where a component has what its certificate comes from. */}}
{{- define "federation.identityMount" -}}
{{- $root := index . 0 -}}
{{- if (index $root.Values (index . 1)).identity.spire -}}
- {name: spire, mountPath: /spiffe-workload-api, readOnly: true}
{{- else -}}
- {name: tls, mountPath: /etc/federation/tls, readOnly: true}
{{- end -}}
{{- end -}}

{{/* The rules of a network policy that let monitoring in. Argument: (list selectors port). */}}
{{- define "federation.monitoring" -}}
- ports: [{protocol: TCP, port: {{ index . 1 }}}]
  {{- with index . 0 }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A line about where the certificate of a component comes from. */}}
{{- define "federation.identityNote" -}}
{{- $root := index . 0 -}}
{{- $identity := (index $root.Values (index . 1)).identity -}}
{{- if not (or $identity.spire $identity.volume) }}
Its pods wait until the Secret {{ include "federation.secretName" . }} has tls.crt, tls.key and ca.crt.
{{- end }}
{{- end -}}
