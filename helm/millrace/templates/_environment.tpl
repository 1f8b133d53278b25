{{/*
The environment of the services. Settings that are no secrets stand in one ConfigMap per source and service; secrets
are read from Secrets that exist. The names are those of the settings classes, which a test compares.
*/}}

{{- define "millrace.settings.kafka" -}}
MILLRACE_KAFKA_BOOTSTRAP_SERVERS: {{ .Values.kafka.bootstrapServers | quote }}
MILLRACE_KAFKA_SECURITY_PROTOCOL: {{ .Values.kafka.securityProtocol | quote }}
MILLRACE_KAFKA_COMPRESSION: {{ .Values.kafka.compression | quote }}
MILLRACE_KAFKA_CONNECT_TIMEOUT_S: {{ .Values.kafka.connectTimeoutSeconds | quote }}
MILLRACE_KAFKA_FENCED_WAIT_S: {{ .Values.kafka.fencedWaitSeconds | quote }}
{{- if hasPrefix "SASL" .Values.kafka.securityProtocol }}
MILLRACE_KAFKA_SASL_MECHANISM: {{ .Values.kafka.sasl.mechanism | quote }}
{{- end }}
{{- if include "millrace.kafkaTls" . }}
{{- with .Values.kafka.tls }}
{{- if .caKey }}
MILLRACE_KAFKA_SSL_CA_LOCATION: {{ printf "/etc/millrace/tls/kafka/%s" .caKey | quote }}
{{- end }}
{{- if .certificateKey }}
MILLRACE_KAFKA_SSL_CERTIFICATE_LOCATION: {{ printf "/etc/millrace/tls/kafka/%s" .certificateKey | quote }}
{{- end }}
{{- if .privateKeyKey }}
MILLRACE_KAFKA_SSL_KEY_LOCATION: {{ printf "/etc/millrace/tls/kafka/%s" .privateKeyKey | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "millrace.settings.registry" -}}
MILLRACE_REGISTRY_URL: {{ .Values.registry.url | quote }}
{{- with .Values.registry.tls }}
{{- if and .existingSecret .caKey }}
MILLRACE_REGISTRY_SSL_CA_LOCATION: {{ printf "/etc/millrace/tls/registry/%s" .caKey | quote }}
{{- end }}
{{- if .certificateKey }}
MILLRACE_REGISTRY_SSL_CERTIFICATE_LOCATION: {{ printf "/etc/millrace/tls/registry/%s" .certificateKey | quote }}
MILLRACE_REGISTRY_SSL_KEY_LOCATION: {{ printf "/etc/millrace/tls/registry/%s" .privateKeyKey | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes the server of a source. */}}
{{- define "millrace.settings.mysql" -}}
MILLRACE_MYSQL_HOST: {{ .host | quote }}
MILLRACE_MYSQL_PORT: {{ int64 .port | quote }}
{{- if .serverId }}
MILLRACE_MYSQL_SERVER_ID: {{ int64 .serverId | quote }}
{{- end }}
MILLRACE_MYSQL_HEARTBEAT_S: {{ .heartbeatSeconds | quote }}
MILLRACE_MYSQL_CONNECT_TIMEOUT_S: {{ .connectTimeoutSeconds | quote }}
{{- if .tls.mode }}
MILLRACE_MYSQL_SSL_MODE: {{ .tls.mode | quote }}
{{- end }}
{{- if and .tls.existingSecret (ne .tls.mode "DISABLED") }}
{{- if .tls.caKey }}
MILLRACE_MYSQL_SSL_CA: {{ printf "/etc/millrace/tls/mysql/%s" .tls.caKey | quote }}
{{- end }}
{{- if .tls.certificateKey }}
MILLRACE_MYSQL_SSL_CERT: {{ printf "/etc/millrace/tls/mysql/%s" .tls.certificateKey | quote }}
{{- end }}
{{- if .tls.privateKeyKey }}
MILLRACE_MYSQL_SSL_KEY: {{ printf "/etc/millrace/tls/mysql/%s" .tls.privateKeyKey | quote }}
{{- end }}
{{- end }}
{{- if and .tls.existingSecret .tls.serverPublicKeyKey }}
MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH: {{ printf "/etc/millrace/tls/mysql/%s" .tls.serverPublicKeyKey | quote }}
{{- end }}
{{- if .tls.getServerPublicKey }}
MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY: "true"
{{- end }}
{{- if .allowStatements }}
MILLRACE_MYSQL_ALLOW_STATEMENTS: "true"
{{- end }}
{{- end -}}

{{/*
Settings that are lists. Takes a dict with root, source (merged) and sections: the parts of the source that have them.
*/}}
{{- define "millrace.settings.lists" -}}
{{- $given := . -}}
{{- $lines := list -}}
{{- range $path, $setting := (.root.Files.Get "files/settings.json" | fromJson).lists -}}
{{- $section := splitList "." $path | first -}}
{{- $parts := list -}}
{{- if has $section $given.sections -}}
{{- range dig $section ($path | splitList "." | last) list $given.source -}}
{{- $parts = append $parts (ternary (int64 . | toString) . (kindIs "float64" .)) -}}
{{- end -}}
{{- end -}}
{{- if and $parts (ne (index $setting 0) "MILLRACE_ROWS_COMPLETE") -}}
{{- $lines = append $lines (printf "%s: %s" (index $setting 0) (join (index $setting 1) $parts | quote)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/* How rows are written, into topics and files. Takes the source. */}}
{{- define "millrace.settings.rows" -}}
{{- $source := . -}}
MILLRACE_ROWS_BIGINT_UNSIGNED: {{ $source.rows.bigintUnsigned | quote }}
MILLRACE_ROWS_WIDE_DECIMAL: {{ $source.rows.wideDecimal | quote }}
MILLRACE_ROWS_DECIMAL: {{ $source.rows.decimal | quote }}
MILLRACE_ROWS_TEMPORAL: {{ $source.rows.temporal | quote }}
MILLRACE_ROWS_BIT: {{ $source.rows.bit | quote }}
MILLRACE_ROWS_BINARY: {{ $source.rows.binary | quote }}
MILLRACE_ROWS_COLUMN_ATTRIBUTES: {{ $source.rows.columnAttributes | quote }}
MILLRACE_ROWS_PROPAGATE_SOURCE_TYPE: {{ $source.rows.propagateSourceType | quote }}
MILLRACE_ROWS_CONNECTOR: {{ $source.rows.connector | quote }}
MILLRACE_ROWS_TRUNCATE: {{ $source.rows.truncate | quote }}
MILLRACE_ROWS_INCLUDE_QUERY: {{ $source.rows.includeQuery | quote }}
MILLRACE_ROWS_BUFFER_MIB: {{ int64 $source.rows.bufferMib | quote }}
MILLRACE_ROWS_UNPACKED_MIB: {{ int64 $source.rows.unpackedMib | quote }}
{{- end -}}

{{/* Takes a dict with root, source (merged) and component. */}}
{{- define "millrace.settings" -}}
{{- $root := .root -}}
{{- $source := .source -}}
MILLRACE_SOURCE: {{ $source.name | quote }}
{{- if $source.config }}
MILLRACE_CONFIG: /etc/millrace/config/millrace.toml
{{- end }}
MILLRACE_LOG_LEVEL: {{ $root.Values.logLevel | quote }}
MILLRACE_HTTP_HOST: "*"
MILLRACE_HTTP_PORT: {{ int64 $root.Values.http.port | quote }}
{{ include "millrace.settings.kafka" $root }}
MILLRACE_TOPICS_REPLICATION_FACTOR: {{ int64 $root.Values.topics.replicationFactor | quote }}
{{- $sections := list "topics" }}
{{- if has .component (list "rowmapper" "run") }}
{{- $sections = list "topics" "rows" "replicate" "columns" }}
{{- else if eq .component "snapshot" }}
{{- $sections = list "topics" "replicate" }}
{{- end }}
{{ include "millrace.settings.lists" (dict "root" $root "source" $source "sections" $sections) }}
{{- if and $source.inputSource (has .component (list "decoder" "rowmapper")) }}
MILLRACE_INPUT_SOURCE: {{ $source.inputSource | quote }}
{{- end }}
{{- if has .component (list "decoder" "run") }}
MILLRACE_SKIP_GAP: {{ $source.skipGap | quote }}
{{- end }}
{{- if has .component (list "rowmapper" "run") }}
MILLRACE_ROWS_FORMAT: {{ $source.rows.format | quote }}
MILLRACE_ROWS_ON_INCOMPATIBLE: {{ $source.rows.onIncompatible | quote }}
{{ include "millrace.settings.rows" $source }}
MILLRACE_ROWS_TOMBSTONES: {{ $source.rows.tombstones | quote }}
MILLRACE_ROWS_KEY_HEADERS: {{ $source.rows.keyHeaders | quote }}
{{- with $source.rows.complete }}
MILLRACE_ROWS_COMPLETE: {{ join "," . | quote }}
MILLRACE_ROWS_STORE: /var/lib/millrace
{{- end }}
MILLRACE_TOPICS_MAX_TABLES: {{ int64 $root.Values.topics.maxTables | quote }}
MILLRACE_TOPICS_TABLE_PARTITIONS: {{ int64 $root.Values.topics.tablePartitions | quote }}
{{- end }}
{{- if ne .component "reader" }}
{{ include "millrace.settings.registry" $root }}
{{- end }}
{{- if has .component (list "reader" "run") }}
MILLRACE_START: {{ $source.start | quote }}
MILLRACE_ON_GAP: {{ $source.onGap | quote }}
{{- if $source.files }}
MILLRACE_FILES: {{ $source.files | join "," | quote }}
MILLRACE_FOLLOW: "true"
{{- else }}
MILLRACE_SEMI_SYNC: {{ $source.semiSync | quote }}
{{ include "millrace.settings.mysql" $source.mysql }}
{{- end }}
{{- end }}
{{- if eq .component "snapshot" }}
{{ include "millrace.settings.mysql" $source.mysql }}
{{- with $source.snapshot }}
MILLRACE_SNAPSHOT_MODE: {{ .mode | quote }}
{{- with .tables }}
MILLRACE_SNAPSHOT_TABLES: {{ join "," . | quote }}
{{- end }}
{{- with .exclude }}
MILLRACE_SNAPSHOT_EXCLUDE: {{ join "," . | quote }}
{{- end }}
{{- with .where }}
MILLRACE_SNAPSHOT_WHERE: {{ toJson . | quote }}
{{- end }}
MILLRACE_SNAPSHOT_PARALLEL: {{ int64 .parallel | quote }}
MILLRACE_SNAPSHOT_CHUNK_ROWS: {{ int64 .chunkRows | quote }}
MILLRACE_SNAPSHOT_CHUNK_MIB: {{ int64 .chunkMib | quote }}
MILLRACE_SNAPSHOT_ROWS_PER_S: {{ int64 .rowsPerSecond | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* One variable from a Secret. Takes a list: name, secret, key. */}}
{{- define "millrace.secretVariable" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 | quote }}
      key: {{ index . 2 | quote }}
{{- end -}}

{{- define "millrace.secrets.kafka" -}}
{{- $variables := list -}}
{{- with .Values.kafka -}}
{{- if hasPrefix "SASL" .securityProtocol -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_KAFKA_SASL_USERNAME" .sasl.existingSecret .sasl.usernameKey)) -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_KAFKA_SASL_PASSWORD" .sasl.existingSecret .sasl.passwordKey)) -}}
{{- end -}}
{{- if and (include "millrace.kafkaTls" $) .tls.privateKeyPasswordKey -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_KAFKA_SSL_KEY_PASSWORD" .tls.existingSecret .tls.privateKeyPasswordKey)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $variables -}}
{{- end -}}

{{- define "millrace.secrets.registry" -}}
{{- $variables := list -}}
{{- with .Values.registry -}}
{{- if .existingSecret -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_REGISTRY_USERNAME" .existingSecret .usernameKey)) -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_REGISTRY_PASSWORD" .existingSecret .passwordKey)) -}}
{{- end -}}
{{- if .tls.privateKeyPasswordKey -}}
{{- $variables = append $variables (include "millrace.secretVariable" (list "MILLRACE_REGISTRY_SSL_KEY_PASSWORD" .tls.existingSecret .tls.privateKeyPasswordKey)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $variables -}}
{{- end -}}

{{/* The variables from Secrets, as YAML of a list. Takes a dict with root, source (merged) and component. */}}
{{- define "millrace.secrets" -}}
{{- $parts := list (include "millrace.secrets.kafka" .root) -}}
{{- if ne .component "reader" -}}
{{- $parts = append $parts (include "millrace.secrets.registry" .root) -}}
{{- end -}}
{{- if and (has .component (list "rowmapper" "run" "reprocess")) .source.hashSalt.existingSecret -}}
{{- $parts = append $parts (include "millrace.secretVariable" (list "MILLRACE_COLUMNS_HASH_SALT" .source.hashSalt.existingSecret .source.hashSalt.key)) -}}
{{- end -}}
{{- if and (has .component (list "reader" "run" "snapshot")) .source.mysql.host -}}
{{- $parts = append $parts (include "millrace.secretVariable" (list "MILLRACE_MYSQL_USER" .source.mysql.existingSecret .source.mysql.userKey)) -}}
{{- $parts = append $parts (include "millrace.secretVariable" (list "MILLRACE_MYSQL_PASSWORD" .source.mysql.existingSecret .source.mysql.passwordKey)) -}}
{{- end -}}
{{- compact $parts | join "\n" -}}
{{- end -}}

{{/* The Secrets with TLS material that a service mounts, as YAML of a map from folder to Secret. */}}
{{- define "millrace.tlsSecrets" -}}
{{- $secrets := dict -}}
{{- if include "millrace.kafkaTls" .root -}}
{{- $_ := set $secrets "kafka" .root.Values.kafka.tls.existingSecret -}}
{{- end -}}
{{- if and (ne .component "reader") .root.Values.registry.tls.existingSecret -}}
{{- $_ := set $secrets "registry" .root.Values.registry.tls.existingSecret -}}
{{- end -}}
{{- if and (has .component (list "reader" "run" "snapshot")) .source.mysql.host .source.mysql.tls.existingSecret (or (ne .source.mysql.tls.mode "DISABLED") .source.mysql.tls.serverPublicKeyKey) -}}
{{- $_ := set $secrets "mysql" .source.mysql.tls.existingSecret -}}
{{- end -}}
{{- toYaml $secrets -}}
{{- end -}}

{{/* Whether a pod keeps known rows. Takes the same dict. */}}
{{- define "millrace.keepsRows" -}}
{{- if and (has .component (list "rowmapper" "run")) .source.rows.complete -}}true{{- end -}}
{{- end -}}

{{/* Volumes and mounts that every pod has. Take the same dict, and in it key: the short name of the source. */}}
{{- define "millrace.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .tmp.sizeLimit | quote }}
{{- if include "millrace.keepsRows" . }}
- name: rows
  {{- with .source.rows.store }}
  {{- if .existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .existingClaim | quote }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .sizeLimit | quote }}
  {{- end }}
  {{- end }}
{{- end }}
{{- if .source.config }}
- name: config
  configMap:
    name: {{ include "millrace.partName" (dict "root" .root "source" .key "component" "config" "limit" 63) | quote }}
{{- end }}
{{- range $folder, $secret := include "millrace.tlsSecrets" . | fromYaml }}
- name: tls-{{ $folder }}
  secret:
    secretName: {{ $secret | quote }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "millrace.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if include "millrace.keepsRows" . }}
- name: rows
  mountPath: /var/lib/millrace
{{- end }}
{{- if .source.config }}
- name: config
  mountPath: /etc/millrace/config
  readOnly: true
{{- end }}
{{- range $folder, $secret := include "millrace.tlsSecrets" . | fromYaml }}
- name: tls-{{ $folder }}
  mountPath: /etc/millrace/tls/{{ $folder }}
  readOnly: true
{{- end }}
{{- end -}}

{{/* Where pods run. Takes the values of a component or of the jobs. */}}
{{- define "millrace.scheduling" -}}
{{- $parts := list -}}
{{- with .nodeSelector -}}{{- $parts = append $parts (dict "nodeSelector" . | toYaml) -}}{{- end -}}
{{- with .affinity -}}{{- $parts = append $parts (dict "affinity" . | toYaml) -}}{{- end -}}
{{- with .tolerations -}}{{- $parts = append $parts (dict "tolerations" . | toYaml) -}}{{- end -}}
{{- with .topologySpreadConstraints -}}{{- $parts = append $parts (dict "topologySpreadConstraints" . | toYaml) -}}{{- end -}}
{{- with .priorityClassName -}}{{- $parts = append $parts (dict "priorityClassName" . | toYaml) -}}{{- end -}}
{{- join "\n" $parts -}}
{{- end -}}

{{/* The environment of a job. Takes the dict of its pod. */}}
{{- define "millrace.settings.job" -}}
{{- if .source.config }}
MILLRACE_CONFIG: /etc/millrace/config/millrace.toml
{{- end }}
{{ include "millrace.settings.kafka" .root }}
{{ include "millrace.settings.registry" .root }}
{{- if eq .job "reprocess" }}
{{- /* Iceberg has no DECIMAL of more than 38 digits. */}}
{{- $iceberg := or .follow (contains "iceberg" (join " " .values.extraArgs)) }}
{{ include "millrace.settings.rows" (merge (dict "rows" (ternary (dict "wideDecimal" "string") dict $iceberg)) .source) }}
{{ include "millrace.settings.lists" (dict "root" .root "source" .source "sections" (list "topics" "rows" "replicate" "columns")) }}
{{- end }}
{{- if .metrics }}
MILLRACE_HTTP_HOST: "*"
MILLRACE_HTTP_PORT: {{ int64 .root.Values.http.port | quote }}
{{- end }}
{{- end -}}

{{/* What Spark may use: what the container gets for certain, else what it asks for. Takes the container's resources. */}}
{{- define "millrace.sparkVariables" -}}
{{- $limits := default dict .limits -}}
{{- $requests := default dict .requests -}}
{{- $variables := list -}}
{{- if $limits.cpu -}}
{{- $variables = append $variables (list "MILLRACE_SPARK_CORES" "limits.cpu" "1") -}}
{{- else if $requests.cpu -}}
{{- $variables = append $variables (list "MILLRACE_SPARK_CORES" "requests.cpu" "1") -}}
{{- end -}}
{{- if $limits.memory -}}
{{- $variables = append $variables (list "MILLRACE_SPARK_MEMORY_MIB" "limits.memory" "1Mi") -}}
{{- else if $requests.memory -}}
{{- $variables = append $variables (list "MILLRACE_SPARK_MEMORY_MIB" "requests.memory" "1Mi") -}}
{{- end -}}
{{- range $variables }}
- name: {{ index . 0 }}
  valueFrom:
    resourceFieldRef:
      resource: {{ index . 1 }}
      divisor: {{ index . 2 | quote }}
{{- end -}}
{{- end -}}
