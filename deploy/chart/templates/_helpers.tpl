{{- /* image of a part of the chart: (list $ .Values.agent) */}}
{{- define "vmgrace.image" -}}
{{- $top := index . 0 }}{{ $image := (index . 1).image -}}
{{ $top.Values.image.registry }}/{{ $image.repository }}:{{ $top.Values.image.tag | default $top.Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* args of the container for a part's further flags */}}
{{- define "vmgrace.flags" -}}
{{- range $name, $value := . }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
