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
