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
{{- include "millrace.check.source" (list (printf "sources.%s" $key) $source $ $key (index $.Values.sources $key)) -}}
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
{{- include "millrace.check.components" (list . $sources) -}}
{{- $mounts := list .Values.jobs.output.path "/tmp" "/etc/millrace/spark" "/etc/millrace/config" -}}
{{- include "millrace.check.pod" (list "jobs" .Values.jobs . (list "tmp" "rows" "config" "reports" "spark" "spark-local-dir-1") $mounts) -}}
{{- include "millrace.check.labels" (list "commonLabels" .Values.commonLabels) -}}
{{- include "millrace.check.labels" (list "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels) -}}
{{- include "millrace.check.labels" (list "metrics.prometheusRule.labels" .Values.metrics.prometheusRule.labels) -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.service.enabled" -}}
{{- end -}}
{{- with .Values.metrics.serviceMonitor -}}
{{- if gt (include "millrace.seconds" .scrapeTimeout | float64) (include "millrace.seconds" .interval | float64) -}}
{{- fail (printf "metrics.serviceMonitor.scrapeTimeout is %s, longer than metrics.serviceMonitor.interval %s: Prometheus refuses that" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.jobs.output.existingClaim (hasPrefix "/tmp/" (printf "%s/" .Values.jobs.output.path)) -}}
{{- fail (printf "jobs.output.path is %s, in the volume at /tmp: take another folder" .Values.jobs.output.path) -}}
{{- end -}}
{{- $elsewhere := include "millrace.outputElsewhere" . -}}
{{- $stays := or $elsewhere .Values.jobs.output.existingClaim -}}
{{- range $job := list "analytics" "archive" "loopDetection" "reprocess" -}}
{{- with index $.Values.jobs $job -}}
{{- include "millrace.check.schedule" (list (printf "jobs.%s.schedule" $job) .schedule) -}}
{{- include "millrace.check.arguments" (list (printf "jobs.%s.extraArgs" $job) (snakecase $job) .extraArgs $) -}}
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
{{- with .Values.jobs.archive.folder -}}
{{- $folder := trimPrefix "file://" . -}}
{{- $lasting := and (contains "://" $folder) (not (hasPrefix "file:" .)) -}}
{{- if and $.Values.jobs.output.existingClaim (hasPrefix (printf "%s/" $.Values.jobs.output.path) (printf "%s/" $folder)) -}}
{{- $lasting = true -}}
{{- end -}}
{{- range $mount := $.Values.jobs.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" $mount.mountPath)) (printf "%s/" $folder) -}}
{{- range $volume := $.Values.jobs.extraVolumes -}}
{{- if and (eq $volume.name $mount.name) (not (hasKey $volume "emptyDir")) (not $mount.readOnly) -}}
{{- $lasting = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.jobs.archive.enabled (not $lasting) -}}
{{- fail (printf "jobs.archive.folder is %s, which is on no volume that lasts: the archives would vanish with the pods; take a folder of an object store, one below jobs.output.path with jobs.output.existingClaim, or one on a volume of jobs.extraVolumes" .) -}}
{{- end -}}
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
{{- range $name, $_ := .Values.jobs.executors.sparkConf -}}
{{- if regexMatch "(?i)(secret|password|token|access\\.key)" $name -}}
{{- fail (printf "jobs.executors.sparkConf has %s, which everybody would see who may read ConfigMaps: give Spark secrets by jobs.extraEnv with valueFrom.secretKeyRef" $name) -}}
{{- end -}}
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

{{/*
Takes a list: where the source is in the values, the source (merged), the root, its short name, and what is given of it.
*/}}
{{- define "millrace.check.source" -}}
{{- $given := . -}}
{{- $path := index . 0 -}}
{{- $source := index . 1 -}}
{{- $chart := (index . 2).Files.Get "files/settings.json" | fromJson -}}
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
{{- if and .files (ne (toJson .mysql) (toJson $chart.mysql)) -}}
{{- fail (printf "%s: files are read, and %s.mysql has values for a server: leave them out" $path $path) -}}
{{- end -}}
{{- if and .files .semiSync -}}
{{- fail (printf "%s: semiSync needs a server; files wait for nobody" $path) -}}
{{- end -}}
{{- if and .files (hasPrefix "gtid:" .start) -}}
{{- fail (printf "%s: files can be read from earliest, latest, FILE:POSITION or time:…, not from a GTID set" $path) -}}
{{- end -}}
{{- include "millrace.check.mysqlTls" (list (printf "%s.mysql.tls" $path) .mysql.tls) -}}
{{- if and .mysql.host (ne (int64 .mysql.port) 3306) (not (regexMatch "(^|,) ?([^:,/]+|\\[[^]]+\\])($|,)" .mysql.host)) -}}
{{- fail (printf "%s.mysql.port would have no effect: each server of %s.mysql.host has a port or a socket" $path $path) -}}
{{- end -}}
{{- include "millrace.check.rows" (list $path . (index $given 2)) -}}
{{- end -}}
{{- include "millrace.check.config" $given -}}
{{- $mounts := list "/tmp" "/var/lib/millrace" "/etc/millrace/config" "/etc/millrace/tls/kafka" "/etc/millrace/tls/registry" "/etc/millrace/tls/mysql" -}}
{{- range $component := list "reader" "decoder" "rowmapper" "run" "snapshot" -}}
{{- include "millrace.check.pod" (list (printf "%s.%s" $path $component) (index $source $component) (index $given 2) (list "tmp" "rows" "config") $mounts) -}}
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

{{/* Takes a list: where the TLS material of a server is in the values, and the material. */}}
{{- define "millrace.check.mysqlTls" -}}
{{- include "millrace.check.tls" . -}}
{{- $path := index . 0 -}}
{{- with index . 1 -}}
{{- $ca := and .existingSecret .caKey -}}
{{- if and (eq .mode "VERIFY_CA") (not $ca) -}}
{{- fail (printf "%s.mode is VERIFY_CA: set %s.existingSecret and %s.caKey to the Secret and the key of the certificate authority" $path $path $path) -}}
{{- end -}}
{{- if and $ca (has .mode (list "PREFERRED" "REQUIRED")) -}}
{{- fail (printf "%s.mode is %s, which checks no certificate, and %s.caKey names a certificate authority: set %s.mode to VERIFY_CA or VERIFY_IDENTITY, or %s.caKey to \"\"" $path .mode $path $path $path) -}}
{{- end -}}
{{- if and .existingSecret (eq .mode "DISABLED") (not .serverPublicKeyKey) -}}
{{- fail (printf "%s.existingSecret would have no effect: %s.mode is DISABLED" $path $path) -}}
{{- end -}}
{{- $verifies := or (hasPrefix "VERIFY" .mode) (and $ca (not .mode)) -}}
{{- if and .getServerPublicKey $verifies -}}
{{- fail (printf "%s.getServerPublicKey would have no effect: the server's certificate is verified" $path) -}}
{{- end -}}
{{- if and .serverPublicKeyKey (or $verifies (eq .mode "REQUIRED")) -}}
{{- fail (printf "%s.serverPublicKeyKey would have no effect: it is for servers without TLS; set %s.mode to DISABLED or PREFERRED" $path $path) -}}
{{- end -}}
{{- if and .serverPublicKeyKey (not .existingSecret) -}}
{{- fail (printf "%s.serverPublicKeyKey is set: set %s.existingSecret to the name of the Secret that has it" $path $path) -}}
{{- end -}}
{{- if and .serverPublicKeyKey .getServerPublicKey -}}
{{- fail (printf "%s.getServerPublicKey takes any key and %s.serverPublicKeyKey one alone: unset one of them" $path $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What would have no effect, or not the one that it names. Takes a list: path and source, and the root. */}}
{{- define "millrace.check.rows" -}}
{{- $path := index . 0 -}}
{{- $root := index . 2 -}}
{{- $source := index . 1 -}}
{{- with $source -}}
{{- $config := .config -}}
{{- if and .rows.includeQuery (or .columns.drop .columns.mask .columns.hash .columns.truncate) -}}
{{- fail (printf "%s.rows.includeQuery shows in statements what %s.columns keeps from rows: unset one of them" $path $path) -}}
{{- end -}}
{{- if and (eq .rows.onIncompatible "new-topic") (or (ne .rows.format "avro") (not $root.Values.registry.url)) -}}
{{- fail (printf "%s.rows.onIncompatible would have no effect: only a schema registry (registry.url) refuses schemas, of rows in avro" $path) -}}
{{- end -}}
{{- if and (ne .rows.decimal "decimal") (ne .rows.wideDecimal "string") -}}
{{- fail (printf "%s.rows.wideDecimal would have no effect: %s.rows.decimal decides for all sizes" $path $path) -}}
{{- end -}}
{{- if and (has .rows.format (list "json" "cloudevents")) (or (ne .rows.columnAttributes "none") .rows.propagateSourceType) -}}
{{- fail (printf "%s.rows.%s would have no effect: %s.rows.format is %s, which has no schemas" $path (ternary "columnAttributes" "propagateSourceType" (ne .rows.columnAttributes "none")) $path .rows.format) -}}
{{- end -}}
{{- if and .rows.store.existingClaim (not .rows.complete) -}}
{{- fail (printf "%s.rows.store.existingClaim would have no effect: %s.rows.complete names no table" $path $path) -}}
{{- end -}}
{{- if and .columns.hash (not .hashSalt.existingSecret) -}}
{{- fail (printf "%s.columns.hash needs %s.hashSalt.existingSecret, the Secret with the key of the hashes" $path $path) -}}
{{- end -}}
{{- if and .hashSalt.existingSecret (not .columns.hash) (not (dig "columns" "hash" "" (fromToml $config))) -}}
{{- fail (printf "%s.hashSalt.existingSecret would have no effect: %s.columns.hash names no column" $path $path) -}}
{{- end -}}
{{- if and .replicate.doDb .replicate.ignoreDb -}}
{{- fail (printf "%s.replicate.ignoreDb would have no effect: %s.replicate.doDb decides alone" $path $path) -}}
{{- end -}}
{{- if and .replicate.doServerIds .replicate.ignoreServerIds -}}
{{- fail (printf "%s.replicate.ignoreServerIds would have no effect: %s.replicate.doServerIds decides alone" $path $path) -}}
{{- end -}}
{{- range $list := list (list "topics" "names") (list "topics" "partitions") (list "rows" "keys") (list "columns" "mask") (list "columns" "truncate") (list "replicate" "ignoreOperations") -}}
{{- $names := list -}}
{{- range index $source (index $list 0) (index $list 1) -}}
{{- $name := splitList "=" . | first | trim -}}
{{- if not (contains "=" .) -}}
{{- fail (printf "%s.%s has %q, which lacks a = with what stands on its right" $path (join "." $list) .) -}}
{{- end -}}
{{- if has $name $names -}}
{{- fail (printf "%s.%s has two rules for %q, and only one would have an effect" $path (join "." $list) $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- if and (ne .snapshot.mode "once") (or .snapshot.tables .snapshot.where) -}}
{{- if or .snapshot.tables (eq .snapshot.mode "none") -}}
{{- fail (printf "%s.snapshot.%s would have no effect: %s.snapshot.mode is %s" $path (ternary "tables" "where" (not (empty .snapshot.tables))) $path .snapshot.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The file of settings of a source. Takes what millrace.check.source takes. */}}
{{- define "millrace.check.config" -}}
{{- $path := index . 0 -}}
{{- $source := index . 1 -}}
{{- $root := index . 2 -}}
{{- if $source.config -}}
{{- $content := fromToml $source.config -}}
{{- if and (hasKey $content "Error") (eq (len $content) 1) -}}
{{- fail (printf "%s.config is not TOML: %s" $path $content.Error) -}}
{{- end -}}
{{- $values := ($root.Files.Get "files/settings.json" | fromJson).values -}}
{{- $set := dict -}}
{{- $components := append (include "millrace.components" $source | fromJsonArray) "snapshot" -}}
{{- range $component := $components -}}
{{- $_ := mergeOverwrite $set (include "millrace.settings" (dict "root" $root "source" $source "component" $component) | fromYaml) -}}
{{- end -}}
{{- $flat := dict -}}
{{- range $key, $value := $content -}}
{{- if kindIs "map" $value -}}
{{- range $name, $_ := $value -}}
{{- $_ := set $flat (printf "MILLRACE_%s_%s" $key $name | upper) (printf "%s.%s" $key $name) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $flat (printf "MILLRACE_%s" $key | upper) $key -}}
{{- end -}}
{{- end -}}
{{- range $variable, $key := $flat -}}
{{- if not (hasKey $values $variable) -}}
{{- fail (printf "%s.config has the key %s, which no program knows: docs/configuration.md has all settings" $path $key) -}}
{{- end -}}
{{- $value := get $values $variable | replace "sources.*" $path -}}
{{- if regexMatch "_(PASSWORD|HASH_SALT)$" $variable -}}
{{- fail (printf "%s.config holds a password or a key (%s), which everybody would see who may read ConfigMaps: put it into a Secret, and name that in the values (%s)" $path $key $value) -}}
{{- end -}}
{{- if or (hasKey $set $variable) (and (hasPrefix "MILLRACE_MYSQL_" $variable) $source.mysql.host) -}}
{{- fail (printf "%s.config has the key %s, which the chart sets itself, so that it would have no effect: set %s" $path $key (default "none" $value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values of services that no source has. Takes a list: the root, and the sources. */}}
{{- define "millrace.check.components" -}}
{{- $root := index . 0 -}}
{{- $sources := index . 1 -}}
{{- $defaults := ($root.Files.Get "files/settings.json" | fromJson).components -}}
{{- $used := dict -}}
{{- range $key, $source := $sources -}}
{{- $components := include "millrace.components" $source | fromJsonArray -}}
{{- if eq $source.snapshot.mode "once" -}}{{- $components = append $components "snapshot" -}}{{- end -}}
{{- range $component := $components -}}{{- $_ := set $used $component true -}}{{- end -}}
{{- range $component := list "reader" "decoder" "rowmapper" "run" -}}
{{- $own := get (index $root.Values.sources $key) $component -}}
{{- if and $own (not (has $component $components)) -}}
{{- include "millrace.check.unused" (list (printf "sources.%s.%s" $key $component) $source $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $component, $default := $defaults -}}
{{- if and $sources (not (hasKey $used $component)) -}}
{{- $source := get $sources (keys $sources | sortAlpha | first) -}}
{{- if get $root.Values.sourceDefaults $component -}}
{{- include "millrace.check.unused" (list (printf "sourceDefaults.%s" $component) $source $component) -}}
{{- else if ne (toJson $default) (toJson (get $root.Values $component)) -}}
{{- range $name, $value := get $root.Values $component -}}
{{- if ne (toJson $value) (toJson (get $default $name)) -}}
{{- include "millrace.check.unused" (list (printf "%s.%s" $component $name) $source $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millrace.check.unused" -}}
{{- $source := index . 1 -}}
{{- $why := printf "mode is %s" $source.mode -}}
{{- if eq (index . 2) "snapshot" -}}{{- $why = "snapshot.mode is none" -}}{{- end -}}
{{- if $source.inputSource -}}{{- $why = "inputSource is set" -}}{{- end -}}
{{- fail (printf "%s would have no effect: there is no such pod, since %s" (index . 0) $why) -}}
{{- end -}}

{{/* Options of a job. Takes a list: the path, the job, its arguments, and the root. */}}
{{- define "millrace.check.arguments" -}}
{{- $path := index . 0 -}}
{{- $job := index . 1 -}}
{{- $known := get ((index . 3).Files.Get "files/settings.json" | fromJson).options $job -}}
{{- $chart := dict "--source" "sources" "--bootstrap-servers" "kafka.bootstrapServers" "--registry-url" "registry.url" "--config" "sources.*.config" "--output" "jobs.output.path" "--master" "jobs.executors.count" "--from" (printf "jobs.%s.from" (camelcase $job | untitle)) "--archive" "jobs.archive.folder" -}}
{{- range index . 2 -}}
{{- if hasPrefix "--" . -}}
{{- $option := splitList "=" . | first -}}
{{- if and (hasKey $chart $option) (or (ne $option "--archive") (eq $job "archive")) (has $option $known) -}}
{{- fail (printf "%s has %s, which the chart sets: set %s" $path $option (get $chart $option)) -}}
{{- end -}}
{{- if not (has $option $known) -}}
{{- fail (printf "%s has %s, which is no option of the job %s: there are %s" $path $option $job (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@]*@" . -}}
{{- fail (printf "%s holds a password in an address, which everybody would see who may read pods: put it into a Secret, and name that in jobs.extraEnv" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A schedule in the syntax of cron. Takes a list: the path, and the schedule. */}}
{{- define "millrace.check.schedule" -}}
{{- $path := index . 0 -}}
{{- $schedule := index . 1 -}}
{{- $fields := splitList " " (regexReplaceAll " +" (trim $schedule) " ") -}}
{{- $wrong := and (not (regexMatch "^@(yearly|annually|monthly|weekly|daily|midnight|hourly|every ([0-9]+(\\.[0-9]+)?(h|m|s))+)$" $schedule)) (ne (len $fields) 5) -}}
{{- if eq (len $fields) 5 -}}
{{- range $number, $bounds := list (list 0 59) (list 0 23) (list 1 31) (list 1 12) (list 0 6) -}}
{{- $field := index $fields $number | lower -}}
{{- $names := list (list) (list) (list) (list "" "jan" "feb" "mar" "apr" "may" "jun" "jul" "aug" "sep" "oct" "nov" "dec") (list "sun" "mon" "tue" "wed" "thu" "fri" "sat") -}}
{{- range $value, $name := index $names $number -}}
{{- if $name -}}{{- $field = replace $name (toString $value) $field -}}{{- end -}}
{{- end -}}
{{- range $part := splitList "," $field -}}
{{- if not (regexMatch "^([*?]|[0-9]{1,2}(-[0-9]{1,2})?)(/[1-9][0-9]?)?$" $part) -}}
{{- $wrong = true -}}
{{- else -}}
{{- $ends := splitList "-" (splitList "/" $part | first) -}}
{{- if not (has (first $ends) (list "*" "?")) -}}
{{- $from := first $ends | trimPrefix "0" | default "0" | int -}}
{{- $to := last $ends | trimPrefix "0" | default "0" | int -}}
{{- if or (lt $from (index $bounds 0)) (gt $to (index $bounds 1)) (gt $from $to) -}}{{- $wrong = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (regexMatch "^(30|31)$" (index $fields 2)) (regexMatch "^(2|02|feb)$" (lower (index $fields 3))) (has (index $fields 4) (list "*" "?")) -}}{{- $wrong = true -}}{{- end -}}
{{- if and (eq "31" (index $fields 2)) (regexMatch "^0?(2|4|6|9|11|feb|apr|jun|sep|nov)$" (lower (index $fields 3))) (has (index $fields 4) (list "*" "?")) -}}{{- $wrong = true -}}{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "%s is %q, which is no time of cron: expected minute (0-59), hour (0-23), day of the month (1-31), month (1-12) and day of the week (0-6), or @daily and the like" $path $schedule) -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "millrace.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- if regexMatch "^e[0-9+]+$" $unit -}}{{- float64 $text -}}
{{- else -}}{{- mulf (float64 $number) (get $units $unit) -}}{{- end -}}
{{- end -}}

{{/* A duration of Prometheus in seconds. */}}
{{- define "millrace.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $seconds = addf $seconds (mulf (regexFind "[0-9]+" . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/*
Takes a list: where the values of a pod are, the values, the root, and names of volumes and folders that are the chart's.
*/}}
{{- define "millrace.check.pod" -}}
{{- $path := index . 0 -}}
{{- $values := index . 1 -}}
{{- $root := index . 2 -}}
{{- $reserved := index . 3 -}}
{{- $folders := index . 4 -}}
{{- include "millrace.check.labels" (list (printf "%s.podLabels" $path) $values.podLabels) -}}
{{- if hasKey $values.podAnnotations "checksum/settings" -}}
{{- fail (printf "%s.podAnnotations has checksum/settings, by which the chart restarts pods: take another name" $path) -}}
{{- end -}}
{{- $limits := default dict $values.resources.limits -}}
{{- range $resource, $request := default dict $values.resources.requests -}}
{{- $limit := get $limits $resource -}}
{{- if and $request $limit (gt (include "millrace.quantity" $request | float64) (include "millrace.quantity" $limit | float64)) -}}
{{- fail (printf "%s.resources.requests.%s is %v, above %s.resources.limits.%s, which is %v" $path $resource $request $path $resource $limit) -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range $values.extraVolumes -}}
{{- if or (has .name $reserved) (hasPrefix "tls-" .name) -}}
{{- fail (printf "%s.extraVolumes has %s, which is a volume of the chart: take another name" $path .name) -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail (printf "%s.extraVolumes has two volumes of the name %s" $path .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $taken := list -}}
{{- range $values.extraVolumeMounts -}}
{{- $folder := trimSuffix "/" .mountPath -}}
{{- if not (or (has .name $names) (has .name $reserved) (hasPrefix "tls-" .name)) -}}
{{- fail (printf "%s.extraVolumeMounts has %s, which is no volume of %s.extraVolumes" $path .name $path) -}}
{{- end -}}
{{- if has $folder $taken -}}
{{- fail (printf "%s.extraVolumeMounts has two mounts at %s" $path $folder) -}}
{{- end -}}
{{- if has $folder $folders -}}
{{- fail (printf "%s.extraVolumeMounts has a mount at %s, where the chart mounts a volume of its own" $path $folder) -}}
{{- end -}}
{{- $taken = append $taken $folder -}}
{{- end -}}
{{- $variables := list -}}
{{- $settings := ($root.Files.Get "files/settings.json" | fromJson).values -}}
{{- range $values.extraEnv -}}
{{- if has .name $variables -}}
{{- fail (printf "%s.extraEnv has %s twice" $path .name) -}}
{{- end -}}
{{- $variables = append $variables .name -}}
{{- if and (regexMatch "(?i)(PASSWORD|PASSWD|SECRET|TOKEN|SALT|PRIVATE_KEY|CREDENTIALS?)" .name) (not (regexMatch "_(FILE|PATH|LOCATION|DIR|ID)$" .name)) .value -}}
{{- fail (printf "%s.extraEnv holds %s in clear, which everybody would see who may read pods: take it from a Secret with valueFrom.secretKeyRef" $path .name) -}}
{{- end -}}
{{- if and .value (regexMatch "://[^/@]*:[^/@]*@" .value) -}}
{{- fail (printf "%s.extraEnv holds a password in the address %s, which everybody would see who may read pods: take it from a Secret with valueFrom.secretKeyRef" $path .name) -}}
{{- end -}}
{{- if and (hasKey $settings .name) (ne .name "MILLRACE_SPARK_JARS") -}}
{{- $own := get $settings .name -}}
{{- $how := ternary (printf "set %s" $own) "the chart does" (not (empty $own)) -}}
{{- if hasPrefix "sources.*." $own -}}
{{- $how = printf "set %s of the source, so that every pod and job has it" (trimPrefix "sources.*." $own) -}}
{{- end -}}
{{- fail (printf "%s.extraEnv has the setting %s: leave it out; %s" $path .name $how) -}}
{{- end -}}
{{- if and (hasPrefix "MILLRACE_" (upper .name)) (not (has .name (list "MILLRACE_KERNEL" "MILLRACE_CACHE" "MILLRACE_SPARK_JARS"))) -}}
{{- fail (printf "%s.extraEnv has %s, which no program knows, or which the chart sets: docs/configuration.md has all settings" $path .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
