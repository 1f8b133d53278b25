{{/*
What is wrong with the values and their schema cannot say, is said here. Templates of objects include it once.
*/}}
{{- define "millrace.check" -}}
{{- $sources := include "millrace.sources" . | fromYaml -}}
{{- if $sources -}}
{{- include "millrace.check.kafka" .Values.kafka -}}
{{- include "millrace.check.registry" .Values.registry -}}
{{- $names := dict -}}
{{- $serverIds := dict -}}
{{- range $key, $source := $sources -}}
{{- include "millrace.check.source" (list (printf "sources.%s" $key) $source) -}}
{{- if hasKey $names $source.name -}}
{{- fail (printf "sources.%s and sources.%s have the same name %q: two readers would fence each other" (get $names $source.name) $key $source.name) -}}
{{- end -}}
{{- $_ := set $names $source.name $key -}}
{{- if and $source.mysql.host $source.mysql.serverId -}}
{{- $id := int64 $source.mysql.serverId | toString -}}
{{- if hasKey $serverIds $id -}}
{{- fail (printf "sources.%s and sources.%s have the same mysql.serverId %s: a server ends the connection of the one when the other connects; give each a number of its own" (get $serverIds $id) $key $id) -}}
{{- end -}}
{{- $_ := set $serverIds $id $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "millrace.check.pod" (list "jobs" .Values.jobs) -}}
{{- include "millrace.check.labels" (list "commonLabels" .Values.commonLabels) -}}
{{- include "millrace.check.labels" (list "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels) -}}
{{- include "millrace.check.labels" (list "metrics.prometheusRule.labels" .Values.metrics.prometheusRule.labels) -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.service.enabled" -}}
{{- end -}}
{{- $elsewhere := include "millrace.outputElsewhere" . -}}
{{- $stays := or $elsewhere .Values.jobs.output.existingClaim -}}
{{- range $job := list "analytics" "loopDetection" "reprocess" -}}
{{- with index $.Values.jobs $job -}}
{{- if has "--follow" .extraArgs -}}
{{- fail (printf "jobs.%s.extraArgs has --follow: leave it out and set jobs.%s.follow, which makes the job a Deployment; a CronJob would end it after jobs.activeDeadlineSeconds" $job $job) -}}
{{- end -}}
{{- if and .enabled .follow (not $stays) -}}
{{- fail (printf "jobs.%s.follow needs jobs.output.existingClaim, or a folder of an object store as jobs.output.path: the job resumes from the checkpoint in its output folder, which would vanish with the pod" $job) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.jobs.archive.enabled (not .Values.jobs.archive.folder) (not $stays) -}}
{{- fail "jobs.archive.enabled needs jobs.archive.folder or jobs.output.existingClaim: the archives would vanish with the pods" -}}
{{- end -}}
{{- if and $elsewhere .Values.jobs.output.existingClaim -}}
{{- fail (printf "jobs.output.existingClaim is set, but jobs.output.path is %s: a volume is mounted at a directory only; leave one of them out" .Values.jobs.output.path) -}}
{{- end -}}
{{- if include "millrace.executors" . -}}
{{- if not $stays -}}
{{- fail "jobs.executors.count needs jobs.output.existingClaim, a volume that several nodes can mount (ReadWriteMany), or a folder of an object store as jobs.output.path: executors write results themselves, and nobody would find them in volumes of their own" -}}
{{- end -}}
{{- if and (not .Values.jobs.executors.serviceAccount.create) (not .Values.jobs.executors.serviceAccount.name) -}}
{{- fail "jobs.executors.serviceAccount.create is false: set jobs.executors.serviceAccount.name to an account that may make pods" -}}
{{- end -}}
{{- range .Values.jobs.extraEnv -}}
{{- if has .name (list "SPARK_CONF_DIR" "POD_NAME" "POD_IP") -}}
{{- fail (printf "jobs.extraEnv has %s, which the chart sets for jobs with executors: leave it out; settings of Spark go into jobs.executors.sparkConf" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.check.kafka" -}}
{{- if not .bootstrapServers -}}
{{- fail "set kafka.bootstrapServers to the addresses of your brokers, for example kafka-0:9092,kafka-1:9092" -}}
{{- end -}}
{{- $sasl := hasPrefix "SASL" .securityProtocol -}}
{{- if and $sasl (not .sasl.existingSecret) -}}
{{- fail (printf "kafka.securityProtocol is %s: set kafka.sasl.existingSecret to the name of a Secret with user name and password" .securityProtocol) -}}
{{- end -}}
{{- if and .sasl.existingSecret (not $sasl) -}}
{{- fail (printf "kafka.sasl.existingSecret is set, but kafka.securityProtocol is %s: set it to SASL_SSL or SASL_PLAINTEXT" .securityProtocol) -}}
{{- end -}}
{{- if and .tls.existingSecret (not (hasSuffix "SSL" .securityProtocol)) -}}
{{- fail (printf "kafka.tls.existingSecret is set, but kafka.securityProtocol is %s: set it to SSL or SASL_SSL" .securityProtocol) -}}
{{- end -}}
{{- include "millrace.check.clientKey" (list "kafka.tls" .tls) -}}
{{- end -}}

{{- define "millrace.check.registry" -}}
{{- if and (not .url) (or .existingSecret .tls.existingSecret) -}}
{{- fail "registry.url is empty, but a Secret of the registry is named: set it to the address of your schema registry" -}}
{{- end -}}
{{- if regexMatch "^https?://[^/?#]*@" .url -}}
{{- fail "registry.url holds a user name or a password, which everybody would see who may read ConfigMaps: put them into a Secret, and its name into registry.existingSecret" -}}
{{- end -}}
{{- if and .tls.existingSecret (hasPrefix "http://" .url) -}}
{{- fail "registry.tls.existingSecret is set, but registry.url begins with http://: TLS needs https://" -}}
{{- end -}}
{{- include "millrace.check.clientKey" (list "registry.tls" .tls) -}}
{{- end -}}

{{/* Takes a list: where the material is in the values, and the material, with the password of the key. */}}
{{- define "millrace.check.clientKey" -}}
{{- include "millrace.check.tls" . -}}
{{- $path := index . 0 -}}
{{- with index . 1 -}}
{{- if and .certificateKey (not .privateKeyKey) -}}
{{- fail (printf "%s.certificateKey is set without %s.privateKeyKey: a certificate needs its private key" $path $path) -}}
{{- end -}}
{{- if and .privateKeyPasswordKey (not .privateKeyKey) -}}
{{- fail (printf "%s.privateKeyPasswordKey is set without %s.privateKeyKey: it is the password of that key" $path $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: where the material is in the values, and the material. */}}
{{- define "millrace.check.tls" -}}
{{- $path := index . 0 -}}
{{- with index . 1 -}}
{{- if and .privateKeyKey (not .certificateKey) -}}
{{- fail (printf "%s.privateKeyKey is set without %s.certificateKey: a private key is of use with its certificate only" $path $path) -}}
{{- end -}}
{{- if and (or .certificateKey .privateKeyKey) (not .existingSecret) -}}
{{- fail (printf "%s.certificateKey is set: set %s.existingSecret to the name of the Secret that has it" $path $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: where the source is in the values, and the source. */}}
{{- define "millrace.check.source" -}}
{{- $path := index . 0 -}}
{{- $source := index . 1 -}}
{{- with $source -}}
{{- if has $path (list "sources.true" "sources.false") -}}
{{- fail (printf "%s: YAML takes the words yes, no, on, off, true and false for truth values; quote the name of the source, as in \"no\":, or take another" $path) -}}
{{- end -}}
{{- if .inputSource -}}
{{- if eq .inputSource .name -}}
{{- fail (printf "%s: inputSource is the name of the source itself: unset it, or give the source another name" $path) -}}
{{- end -}}
{{- if or .mysql.host .files (eq .mode "run") (ne .snapshot.mode "none") -}}
{{- fail (printf "%s: inputSource is set: the reader and the snapshots are those of %s; unset mysql.host and files, with mode services and snapshot.mode none" $path .inputSource) -}}
{{- end -}}
{{- else if and (not .mysql.host) (not .files) -}}
{{- fail (printf "%s: set mysql.host (a server) or files (binary log files)" $path) -}}
{{- end -}}
{{- if and .mysql.host .files -}}
{{- fail (printf "%s: set either mysql.host or files, not both" $path) -}}
{{- end -}}
{{- if and .mysql.host (not .mysql.existingSecret) -}}
{{- fail (printf "%s: set mysql.existingSecret to the name of a Secret with the user's name and password" $path) -}}
{{- end -}}
{{- if and .files (ne .snapshot.mode "none") -}}
{{- fail (printf "%s: snapshot.mode is %s, and files have no tables to read: set it to none" $path .snapshot.mode) -}}
{{- end -}}
{{- if and .files .semiSync -}}
{{- fail (printf "%s: semiSync needs a server; files wait for nobody" $path) -}}
{{- end -}}
{{- if and .files (hasPrefix "gtid:" .start) -}}
{{- fail (printf "%s: files can be read from earliest, latest, FILE:POSITION or time:…, not from a GTID set" $path) -}}
{{- end -}}
{{- include "millrace.check.tls" (list (printf "%s.mysql.tls" $path) .mysql.tls) -}}
{{- if regexMatch "(?im)^[^#\n]*password[\"']?\\s*=" .config -}}
{{- fail (printf "%s.config holds a password, which everybody would see who may read ConfigMaps: put it into a Secret, and name that in the values" $path) -}}
{{- end -}}
{{- end -}}
{{- range $component := list "reader" "decoder" "rowmapper" "run" "snapshot" -}}
{{- include "millrace.check.pod" (list (printf "%s.%s" $path $component) (index $source $component)) -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: where labels are in the values, and the labels. */}}
{{- define "millrace.check.labels" -}}
{{- $path := index . 0 -}}
{{- range $label, $value := index . 1 -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by|part-of)|helm\\.sh/chart|millrace/.*)$" $label -}}
{{- fail (printf "%s has the label %q, by which the chart finds its own objects: take another name" $path $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a list: where the values of a pod are, and the values. */}}
{{- define "millrace.check.pod" -}}
{{- $path := index . 0 -}}
{{- include "millrace.check.labels" (list (printf "%s.podLabels" $path) (index . 1).podLabels) -}}
{{- if hasKey (index . 1).podAnnotations "checksum/settings" -}}
{{- fail (printf "%s.podAnnotations has checksum/settings, by which the chart restarts pods: take another name" $path) -}}
{{- end -}}
{{- range (index . 1).extraEnv -}}
{{- if and (regexMatch "PASSWORD$" .name) .value -}}
{{- fail (printf "%s.extraEnv holds %s in clear, which everybody would see who may read pods: take it from a Secret with valueFrom.secretKeyRef" $path .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
