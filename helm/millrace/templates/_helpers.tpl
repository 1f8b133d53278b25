{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end -}}

{{/*
The prefix of the names of all objects. A Service's name has no dot and begins with a letter, which the name of a
release need not.
*/}}
{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := include "millrace.name" . -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $release -}}
{{- printf "%s-%s" $name $release | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name $release -}}
{{- $release | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 40 | trimSuffix "-" -}}
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
app.kubernetes.io/name: {{ include "millrace.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The labels of an object. Takes a list: the root, and the labels that this object has beside those of all. */}}
{{- define "millrace.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ include "millrace.chart" $root | quote }}
{{ include "millrace.selectorLabels" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
app.kubernetes.io/part-of: millrace
{{- with mergeOverwrite (deepCopy $root.Values.commonLabels) (index . 1) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The two labels that tell the objects of one release apart. Takes a dict with source and component. */}}
{{- define "millrace.partLabels" -}}
{{- dict "app.kubernetes.io/component" .component "millrace/source" .source | toYaml -}}
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
Merges values into others, as helm does: maps by key, everything else by the last, and null removes. Takes a list: the
map that is changed, and what is merged into it.
*/}}
{{- define "millrace.merge" -}}
{{- $into := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $into $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) -}}
{{- include "millrace.merge" (list (get $into $key) $value) -}}
{{- else -}}
{{- $_ := set $into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Every source with its defaults, and with the values of its services, as YAML of a map from its short name. A source that
is null is none.
*/}}
{{- define "millrace.sources" -}}
{{- $sources := dict -}}
{{- range $key, $given := .Values.sources -}}
{{- if not (kindIs "invalid" $given) -}}
{{- $source := pick $.Values "reader" "decoder" "rowmapper" "run" "snapshot" | deepCopy -}}
{{- include "millrace.merge" (list $source (deepCopy $.Values.sourceDefaults)) -}}
{{- include "millrace.merge" (list $source (deepCopy $given)) -}}
{{- $_ := set $source "name" (default $key $source.name) -}}
{{- $_ := set $sources $key $source -}}
{{- end -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end -}}

{{/* The services of a source, each a Deployment, as JSON of a list. Takes the merged source. */}}
{{- define "millrace.components" -}}
{{- $services := ternary (list "run") (list "reader" "decoder" "rowmapper") (eq .mode "run") -}}
{{- if .inputSource -}}
{{- $services = list "decoder" "rowmapper" -}}
{{- end -}}
{{- ternary (append $services "snapshot") $services (eq .snapshot.mode "signals") | toJson -}}
{{- end -}}

{{/* Whether the clients of Kafka speak TLS with material of their own: "true" or nothing. */}}
{{- define "millrace.kafkaTls" -}}
{{- if and (hasSuffix "SSL" .Values.kafka.securityProtocol) .Values.kafka.tls.existingSecret -}}true{{- end -}}
{{- end -}}

{{/* The name of the Service in front of the metrics. */}}
{{- define "millrace.metricsName" -}}
{{- include "millrace.fullname" . }}-metrics
{{- end -}}

{{/* Whether there are jobs that have executors as pods: "true" or nothing. */}}
{{- define "millrace.executors" -}}
{{- $jobs := .Values.jobs -}}
{{- $enabled := or $jobs.analytics.enabled $jobs.archive.enabled $jobs.loopDetection.enabled (default dict $jobs.reprocess).enabled -}}
{{- if and (gt (int $jobs.executors.count) 0) $enabled (include "millrace.sources" . | fromYaml) -}}true{{- end -}}
{{- end -}}

{{/* The name of what drivers and executors have in common. */}}
{{- define "millrace.sparkName" -}}
{{- include "millrace.fullname" . }}-spark
{{- end -}}

{{- define "millrace.driverAccountName" -}}
{{- default (include "millrace.sparkName" .) .Values.jobs.executors.serviceAccount.name -}}
{{- end -}}

{{/* Whether the results of jobs go to an object store: "true" or nothing. */}}
{{- define "millrace.outputElsewhere" -}}
{{- if contains "://" .Values.jobs.output.path -}}true{{- end -}}
{{- end -}}
