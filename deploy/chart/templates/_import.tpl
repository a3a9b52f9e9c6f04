{{/* The configuration of the importer. */}}
{{- define "federation.import" -}}
metrics: ":9158"
{{- if .Values.import.status }}
status: "localhost:9157"
{{- end }}
identity:
  {{- include "federation.identity" (list . "import") | nindent 2 }}
{{- if .Values.import.persist }}
persist: /var/lib/federation-import
{{- end }}
owners:
  {{- $defaults := dict }}
  {{- with include "federation.maxCatalog" (list . "import" (len .Values.import.owners)) }}
  {{- $defaults = dict "max_catalog" . }}
  {{- end }}
  {{- range .Values.import.owners }}
  - {{ merge (dict) . $defaults | toYaml | nindent 4 | trim }}
  {{- end }}
{{- with .Values.import.kubernetes }}
kubernetes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
