{{/* The labels of an object of a component, "owner", "dns" or "import". Argument: (list . component). */}}
{{- define "federation.labels" -}}
{{- $root := index . 0 -}}
{{ include "federation.podLabels" . }}
{{- with (index $root.Values (index . 1)).image.tag }}
app.kubernetes.io/version: {{ trunc 63 . | trimAll "-._" | quote }}
{{- end }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
The labels of a component's pods. What changes with the chart is not among them: an
upgrade that changes nothing else restarts nothing.
*/}}
{{- define "federation.podLabels" -}}
{{ include "federation.selector" . }}
app.kubernetes.io/component: {{ index . 1 }}
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

{{/* The identity of an owner or an importer, as its configuration has it. */}}
{{- define "federation.identity" -}}
{{- $identity := (index (index . 0).Values (index . 1)).identity -}}
{{- if $identity.spire -}}
spiffe:
  socket: {{ include "federation.workloadAPI" (index . 0) }}
  {{- with $identity.trustDomains }}
  trust_domains: [{{ join ", " . }}]
  {{- end }}
{{- else -}}
files: {cert: /etc/federation/tls/tls.crt, key: /etc/federation/tls/tls.key, ca: /etc/federation/tls/ca.crt}
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

{{/*
The rule of a network policy that lets monitoring in, and nobody else. Probes need none:
a kubelet reaches the pods of its node. Argument: the peers.
*/}}
{{- define "federation.monitoring" -}}
{{- with . }}
- ports: [{protocol: TCP, port: metrics}]
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* The memory limit of a component in MiB, or nothing without one. Argument: (list . component). */}}
{{- define "federation.memory" -}}
{{- with dig "limits" "memory" "" (index (index . 0).Values (index . 1)).resources -}}
{{- $quantity := kindIs "string" . | ternary . (int64 . | toString) -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([kMGT]|[KMGT]i)?$" $quantity) -}}
{{- fail (printf "resources.limits.memory: %q is not a size such as 512Mi" $quantity) -}}
{{- end -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $octets := mulf (regexFind "^[0-9.]+" $quantity | float64) (get $units (regexFind "[A-Za-z]*$" $quantity)) -}}
{{- divf $octets 1048576 | floor | int64 -}}
{{- end -}}
{{- end -}}

{{/*
What the catalog of each of several owners may count. A catalog takes up to twice that in
memory, and twice as much again while an owner comes back with entirely different
services: so all of them have a fifth of the limit, which leaves a fifth for everything
else. Argument: (list . component number).
*/}}
{{- define "federation.maxCatalog" -}}
{{- with include "federation.memory" . -}}
{{- max 1 (div . (mul 5 (index $ 2))) -}}MiB
{{- end -}}
{{- end -}}

{{/*
A volume for what is kept of catalogs: room for an old and a new file of each, and for
some that were set aside. Argument: (list . component).
*/}}
{{- define "federation.cache" -}}
emptyDir:
  sizeLimit: {{ with include "federation.memory" . }}{{ mul 4 . }}Mi{{ else }}8Gi{{ end }}
{{- end -}}

{{/*
The environment of a component. Go collects garbage more often near nine tenths of the
memory limit, rather than take more. Argument: (list . component).
*/}}
{{- define "federation.env" -}}
{{- $env := (index (index . 0).Values (index . 1)).extraEnv -}}
{{- $named := list -}}
{{- range $env }}{{ $named = append $named .name }}{{ end -}}
{{- $memory := include "federation.memory" . -}}
{{- if and $memory (not (has "GOMEMLIMIT" $named)) -}}
{{- $env = prepend $env (dict "name" "GOMEMLIMIT" "value" (printf "%dMiB" (div (mul 9 $memory) 10))) -}}
{{- end -}}
{{- with $env }}
env:
  {{- toYaml . | nindent 2 }}
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
