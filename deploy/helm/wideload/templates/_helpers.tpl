{{- define "wideload.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wideload.fullname" -}}
{{- $name := include "wideload.name" . -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- /* 50: names that begin with this one have 63. */ -}}
{{- .Values.fullnameOverride | default $both | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "wideload.selector" -}}
app.kubernetes.io/name: {{ include "wideload.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wideload.labels" -}}
{{ include "wideload.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: wideload
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "wideload.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository: it is empty; build the image (docs/deployment.md), push it to your registry, and set its repository here, such as registry.example.com/wideload" -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "wideload.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "wideload.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "wideload.configMap" -}}
{{ .Values.existingConfigMap | default (include "wideload.fullname" .) }}
{{- end -}}

{{- /* wideload.toml: what the pod depends on, and the text of the values, without what would be refused in the pod. */ -}}
{{- define "wideload.toml" -}}
{{- range list "web.bind" "web.port" "in.flight.bytes" "task.shutdown.graceful.timeout.ms" -}}
{{- if regexMatch (printf "(?m)^[ \\t]*[\"']?%s[\"']?[ \\t]*=" (replace "." "\\." .)) $.Values.config -}}
{{- fail (printf "config: found %s, which the chart writes itself; remove it, and set port, memory.inFlightMiB or gracefulStopSeconds" .) -}}
{{- end -}}
{{- end -}}
{{- range regexFindAll "/run/secrets/[^/\"'}\\s]+/" .Values.config -1 | uniq -}}
{{- $path := . -}}
{{- $mounted := has (base .) $.Values.secrets -}}
{{- range $.Values.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path -}}{{- $mounted = true -}}{{- end -}}
{{- end -}}
{{- if not $mounted -}}
{{- fail (printf "config: found %s, but secrets does not contain %s, so the file would not exist" $path (base $path)) -}}
{{- end -}}
{{- end -}}
# Properties on which the pod depends; the chart writes them from its values.
web.bind = "0.0.0.0"
web.port = {{ int .Values.port }}
in.flight.bytes = "{{ int .Values.memory.inFlightMiB }}MiB"
task.shutdown.graceful.timeout.ms = {{ mul .Values.gracefulStopSeconds 1000 }}

{{ .Values.config | trim }}
{{- end -}}

{{- /* The container's requests and limits: those of the values, and for what they do not say the sum of `memory`. */ -}}
{{- define "wideload.resources" -}}
{{- $least := add .Values.memory.inFlightMiB .Values.memory.pendingChunksMiB 250 -}}
{{- with .Values.resources.limits | default dict -}}
{{- $given := .memory | default "" | toString -}}
{{- if regexMatch "^[0-9]+[MG]i$" $given -}}
{{- $mebibytes := regexFind "[0-9]+" $given | int64 | mul (ternary 1024 1 (hasSuffix "Gi" $given)) -}}
{{- if lt $mebibytes $least -}}
{{- fail (printf "resources.limits.memory: found %s, but the worker uses up to %dMi: memory.inFlightMiB, memory.pendingChunksMiB and 250; raise it, or lower these" $given $least) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $memory := printf "%dMi" (add .Values.memory.inFlightMiB .Values.memory.pendingChunksMiB .Values.memory.besideMiB) -}}
{{- $limits := dict "memory" $memory | merge (deepCopy (.Values.resources.limits | default dict)) -}}
{{- $requests := dict "cpu" "1" "memory" $limits.memory | merge (deepCopy (.Values.resources.requests | default dict)) -}}
{{- toYaml (dict "limits" $limits "requests" $requests | merge (deepCopy (omit .Values.resources "limits" "requests"))) -}}
{{- end -}}

{{- define "wideload.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "wideload.environment" -}}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "wideload.volumeMounts" -}}
- name: config
  mountPath: /etc/wideload
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- range $index, $name := .Values.secrets }}
- name: secret-{{ $index }}
  mountPath: /run/secrets/{{ $name }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "wideload.volumes" -}}
- name: config
  configMap:
    name: {{ include "wideload.configMap" . }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit }}
{{- range $index, $name := .Values.secrets }}
- name: secret-{{ $index }}
  secret:
    secretName: {{ $name }}
    # For the user of the pod, by fsGroup.
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
