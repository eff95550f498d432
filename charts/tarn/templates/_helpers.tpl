{{/* Where Tarn lives. Admission policies and roles name its service accounts, so it is the same in every cluster. */}}
{{- define "tarn.namespace" -}}tarn-system{{- end -}}

{{- define "tarn.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* Labels of a part; call with (list $ "controller"). */}}
{{- define "tarn.selector" -}}
app.kubernetes.io/name: tarn
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tarn.labels" -}}
{{ include "tarn.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{- define "tarn.stateDir" -}}{{ .Values.node.kubeletDir }}/plugins/pav.tarn.dev{{- end -}}

{{/* Whether a controller is run: call with (list $ "bind"). As the program has it, a minus wins. */}}
{{- define "tarn.runs" -}}
{{- $words := (index . 0).Values.controller.controllers -}}
{{- $name := index . 1 -}}
{{- if and (or (has "*" $words) (has $name $words)) (not (has (printf "-%s" $name) $words)) }}yes{{ end -}}
{{- end -}}

{{/* The probes and the metrics of both processes. */}}
{{- define "tarn.process" -}}
- --health-probe-bind-address=:8081
{{- if .Values.metrics.enabled }}
- --metrics-bind-address=:8443
- --metrics-secure
{{- else }}
- --metrics-bind-address=0
{{- end }}
{{- end -}}

{{/* What API and controllers must both be told. */}}
{{- define "tarn.apps" -}}
{{- range $mode, $class := .Values.apps.classes }}
- --app-class={{ $mode }}={{ $class }}
{{- end }}
{{- end -}}

{{- define "tarn.ports" -}}
- {name: probes, containerPort: 8081}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: 8443}
{{- end }}
{{- end -}}
