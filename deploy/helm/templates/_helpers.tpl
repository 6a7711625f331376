{{- define "sluice.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}:{{ $tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* Fails where nodes would each grant the whole of every limit. */ -}}
{{- define "sluice.check" -}}
{{- if and (eq .Values.store.kind "memory") (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) }}
{{- fail "store.kind memory is for one node: each node would grant the whole of every limit. Set store.kind to redis, or replicas to 1 and autoscaling.enabled to false" }}
{{- end }}
{{- if and .Values.tls.clientCa (not .Values.tls.secretName) }}
{{- fail "tls.clientCa needs tls.secretName: a Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- end }}
