{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "millrace.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "millrace.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The labels by which pods are selected. They must never change between two versions of the chart. */}}
{{- define "millrace.selectorLabels" -}}
app.kubernetes.io/name: {{ include "millrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.labels" -}}
helm.sh/chart: {{ include "millrace.chart" . }}
{{ include "millrace.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: millrace
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The two labels that tell the objects of one release apart. Takes a dict with source and component. */}}
{{- define "millrace.partLabels" -}}
app.kubernetes.io/component: {{ .component }}
millrace/source: {{ .source }}
{{- end -}}

{{- define "millrace.annotations" -}}
{{- with .Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The reference of an image. Takes a dict with image (repository, tag, digest) and root. */}}
{{- define "millrace.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/*
The name of an object of one source. Takes a dict with root, source, component and limit.
A name that is too long is refused, since two names that were cut could be the same.
*/}}
{{- define "millrace.partName" -}}
{{- $name := printf "%s-%s-%s" (include "millrace.fullname" .root) .source .component -}}
{{- if gt (len $name) (int .limit) -}}
{{- fail (printf "the name %q is longer than %d characters: shorten the name of the release or of the source, or set fullnameOverride" $name (int .limit)) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/*
Every source with its defaults, as YAML of a map. Also checks what the schema of the values cannot say.
*/}}
{{- define "millrace.sources" -}}
{{- $sources := dict -}}
{{- $names := dict -}}
{{- range $key, $given := .Values.sources -}}
{{- $source := mergeOverwrite (deepCopy $.Values.sourceDefaults) (deepCopy (default dict $given)) -}}
{{- $_ := set $source "name" (default $key $source.name) -}}
{{- if hasKey $names $source.name -}}
{{- fail (printf "sources.%s and sources.%s have the same name %q: two readers would fence each other" (get $names $source.name) $key $source.name) -}}
{{- end -}}
{{- $_ := set $names $source.name $key -}}
{{- if and (not $source.mysql.host) (not $source.files) -}}
{{- fail (printf "sources.%s: set mysql.host (a server) or files (binary log files)" $key) -}}
{{- end -}}
{{- if and $source.mysql.host $source.files -}}
{{- fail (printf "sources.%s: set either mysql.host or files, not both" $key) -}}
{{- end -}}
{{- if and $source.mysql.host (not $source.mysql.existingSecret) -}}
{{- fail (printf "sources.%s: set mysql.existingSecret to the name of a Secret with the user's name and password" $key) -}}
{{- end -}}
{{- $_ := set $sources $key $source -}}
{{- end -}}
{{- if $sources -}}
{{- if not .Values.kafka.bootstrapServers -}}
{{- fail "set kafka.bootstrapServers to the addresses of your brokers, for example kafka-0:9092,kafka-1:9092" -}}
{{- end -}}
{{- if not .Values.registry.url -}}
{{- fail "set registry.url to the address of your schema registry" -}}
{{- end -}}
{{- if and (hasPrefix "SASL" .Values.kafka.securityProtocol) (not .Values.kafka.sasl.existingSecret) -}}
{{- fail (printf "kafka.securityProtocol is %s: set kafka.sasl.existingSecret to the name of a Secret with user name and password" .Values.kafka.securityProtocol) -}}
{{- end -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end -}}

{{/* Whether the clients of Kafka speak TLS with material of their own: "true" or nothing. */}}
{{- define "millrace.kafkaTls" -}}
{{- if and (hasSuffix "SSL" .Values.kafka.securityProtocol) .Values.kafka.tls.existingSecret -}}true{{- end -}}
{{- end -}}
