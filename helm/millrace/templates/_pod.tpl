{{/*
The template of a service's pod. Takes a dict with root, key, source (merged), component and tmp; with once, it is that of
a Job.
*/}}
{{- define "millrace.pod" -}}
{{- $part := . -}}
{{- $root := .root -}}
{{- $source := .source -}}
{{- $component := .component -}}
{{- $values := index $source $component -}}
{{- $labels := include "millrace.partLabels" (dict "source" .key "component" $component) | fromYaml -}}
{{- $name := include "millrace.partName" (dict "root" $root "source" .key "component" $component "limit" 63) -}}
{{- $settings := include "millrace.settings" $part -}}
metadata:
  labels:
    {{- include "millrace.selectorLabels" $root | nindent 4 }}
    {{- toYaml $labels | nindent 4 }}
    millrace/serves-metrics: "true"
    {{- with mergeOverwrite (deepCopy $root.Values.commonLabels) $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A change of the settings restarts the pod.
    checksum/settings: {{ printf "%s%s" $settings $source.config | sha256sum | quote }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- if .once }}
  restartPolicy: OnFailure
  {{- end }}
  serviceAccountName: {{ include "millrace.serviceAccountName" $root | quote }}
  automountServiceAccountToken: false
  # Variables that Kubernetes makes of Services could look like settings (MILLRACE_KAFKA_...).
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int64 $values.terminationGracePeriodSeconds }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with include "millrace.scheduling" $values }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ $component }}
      image: {{ include "millrace.image" (dict "image" $root.Values.image "root" $root) | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [{{ $component }}]
      securityContext:
        {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      envFrom:
        - configMapRef:
            name: {{ $name | quote }}
      {{- $secrets := include "millrace.secrets" $part }}
      {{- if or $secrets $values.extraEnv }}
      env:
        {{- with $secrets }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ int64 $root.Values.http.port }}
          protocol: TCP
      startupProbe:
        httpGet:
          path: /healthz
          port: http
        {{- toYaml $root.Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        {{- toYaml $root.Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        {{- toYaml $root.Values.probes.readiness | nindent 8 }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts:
        {{- include "millrace.volumeMounts" $part | nindent 8 }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "millrace.volumes" $part | nindent 4 }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
The template of a job's pod. Takes the same dict, and in it job, values (of the job), names (of the sources it reads),
folder (of its results among those of others), follow (it keeps running) and metrics (it serves them).
*/}}
{{- define "millrace.job" -}}
{{- $root := .root -}}
{{- $jobs := $root.Values.jobs -}}
{{- $executors := include "millrace.executors" $root -}}
{{- $labels := include "millrace.partLabels" (dict "source" .key "component" .component) | fromYaml -}}
metadata:
  labels:
    {{- include "millrace.selectorLabels" $root | nindent 4 }}
    {{- toYaml $labels | nindent 4 }}
    {{- if $executors }}
    millrace/spark: "true"
    {{- end }}
    {{- if .metrics }}
    millrace/serves-metrics: "true"
    {{- end }}
    {{- with mergeOverwrite (deepCopy $root.Values.commonLabels) $jobs.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $checksum := dict "checksum/settings" (printf "%s%s" .source.config (toJson $jobs.executors) | sha256sum) }}
  {{- with merge (ternary $checksum dict .follow) $jobs.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not .follow }}
  restartPolicy: Never
  {{- end }}
  {{- if $executors }}
  serviceAccountName: {{ include "millrace.driverAccountName" $root | quote }}
  automountServiceAccountToken: true
  {{- else }}
  serviceAccountName: {{ include "millrace.serviceAccountName" $root | quote }}
  automountServiceAccountToken: false
  {{- end }}
  terminationGracePeriodSeconds: {{ int64 $jobs.terminationGracePeriodSeconds }}
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with include "millrace.scheduling" $jobs }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "millrace.image" (dict "image" $jobs.image "root" $root) | quote }}
      imagePullPolicy: {{ $jobs.image.pullPolicy }}
      args:
        - job
        - {{ .job }}
        {{- range .names }}
        - --source
        - {{ . | quote }}
        {{- end }}
        {{- with .values.from }}
        - --from
        - {{ . | quote }}
        {{- end }}
        {{- if eq .job "archive" }}
        - --archive
        - {{ default (printf "%s/archive" $jobs.output.path) .values.folder | quote }}
        {{- end }}
        - --output
        - {{ printf "%s/%s/%s" $jobs.output.path .folder .component | quote }}
        {{- if $executors }}
        - --master
        - k8s://https://kubernetes.default.svc
        {{- end }}
        {{- if .follow }}
        - --follow
        {{- if eq .job "reprocess" }}
        - --format
        - iceberg
        {{- end }}
        {{- end }}
        {{- with .values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      securityContext:
        {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      env:
        {{- range $name, $value := include "millrace.settings.job" . | fromYaml }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        {{- with include "millrace.sparkVariables" $jobs.resources | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- if $executors }}
        - name: SPARK_CONF_DIR
          value: /etc/millrace/spark
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        {{- end }}
        {{- with include "millrace.secrets" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $jobs.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if .metrics }}
      ports:
        - name: http
          containerPort: {{ int64 $root.Values.http.port }}
          protocol: TCP
      {{- end }}
      resources:
        {{- toYaml $jobs.resources | nindent 8 }}
      volumeMounts:
        {{- include "millrace.volumeMounts" . | nindent 8 }}
        {{- if not (include "millrace.outputElsewhere" $root) }}
        - name: reports
          mountPath: {{ $jobs.output.path | quote }}
        {{- end }}
        {{- if $executors }}
        - name: spark
          mountPath: /etc/millrace/spark
          readOnly: true
        {{- end }}
        {{- with $jobs.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "millrace.volumes" . | nindent 4 }}
    {{- if not (include "millrace.outputElsewhere" $root) }}
    - name: reports
      {{- if $jobs.output.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ $jobs.output.existingClaim | quote }}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- end }}
    {{- if $executors }}
    - name: spark
      configMap:
        name: {{ include "millrace.sparkName" $root | quote }}
    {{- end }}
    {{- with $jobs.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
