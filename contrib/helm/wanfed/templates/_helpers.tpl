{{/* Prefix of the names of all objects. Node names begin with it, so it is a short DNS label. */}}
{{- define "wanfed.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- if and (not .Values.fullnameOverride) (not (contains .Chart.Name $name)) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "wanfed.enrolment" -}}
{{- if eq .Values.certificates.source "enrolment" }}true{{ end -}}
{{- end -}}

{{/* Labels that select pods. The argument is a list: the root context and the component. */}}
{{- define "wanfed.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ if include "wanfed.enrolment" $root }}machine{{ else }}{{ index . 1 }}{{ end }}
{{- end -}}

{{- define "wanfed.labels" -}}
{{ include "wanfed.selector" . }}
{{- $root := index . 0 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "wanfed.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Names of the pods of a component, as a JSON object with the list "names". The server pods have stable DNS names. */}}
{{- define "wanfed.pods" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $names := list -}}
{{- range $i := until (int (index $root.Values $component "replicas")) -}}
{{- $names = append $names (printf "%s-%s-%d" (include "wanfed.fullname" $root) $component $i) -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{/* Addresses of the servers for retry_join and for gateways. */}}
{{- define "wanfed.servers" -}}
{{- $root := . -}}{{- $service := printf "%s-server" (include "wanfed.fullname" .) -}}{{- $addrs := list -}}
{{- range (include "wanfed.pods" (list . "server") | fromJson).names -}}
{{- $addrs = append $addrs (printf "%s.%s.%s.svc:8300" . $service $root.Release.Namespace) -}}
{{- end -}}
{{- dict "addrs" $addrs | toJson -}}
{{- end -}}

{{/* Settings of a server, except those that differ between pods: they are flags. */}}
{{- define "wanfed.serverSettings" -}}
{{- $s := dict "dc" .Values.datacenter "domain" .Values.domain "data_dir" "/var/lib/wanfed/server" "ca_file" "/etc/wanfed/ca.pem" "monitor_addr" "https://0.0.0.0:9102" "log_format" "json" -}}
{{- if gt (int .Values.server.replicas) 1 -}}
{{- $_ := set $s "bootstrap_expect" (int .Values.server.replicas) -}}
{{- $_ := set $s "retry_join" (include "wanfed.servers" . | fromJson).addrs -}}
{{- end -}}
{{- if .Values.primary.datacenter -}}
{{- $_ := set $s "primary_datacenter" .Values.primary.datacenter -}}
{{- $_ := set $s "primary_gateways" .Values.primary.gateways -}}
{{- end -}}
{{- mergeOverwrite $s .Values.server.settings | toPrettyJson -}}
{{- end -}}

{{- define "wanfed.gatewaySettings" -}}
{{- $s := dict "dc" .Values.datacenter "domain" .Values.domain "data_dir" "/var/lib/wanfed/gateway" "ca_file" "/etc/wanfed/ca.pem" "servers" (include "wanfed.servers" . | fromJson).addrs "wan" .Values.gateway.wan "wan_bind" "0.0.0.0:8443" "monitor_addr" "https://0.0.0.0:9103" "log_format" "json" -}}
{{- $_ := set $s "shutdown_delay" (printf "%ds" (int .Values.gateway.shutdownDelaySeconds)) -}}
{{- $_ := set $s "drain_time" (printf "%ds" (int .Values.gateway.drainSeconds)) -}}
{{- mergeOverwrite $s .Values.gateway.settings | toPrettyJson -}}
{{- end -}}

{{/* Settings as environment variables, for the files that wanfed init and join have written. */}}
{{- define "wanfed.settingsEnv" -}}
{{- range $name, $value := . }}
- name: WANFED_{{ upper $name }}
  value: {{ if kindIs "slice" $value }}{{ join "," $value | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- end -}}

{{- define "wanfed.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* What the pods have in common. Without enableServiceLinks: false, variables such as WANFED_SERVER_PORT of
     a Service would be settings of wanfed. */}}
{{- define "wanfed.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "wanfed.containerSecurity" -}}
image: {{ include "wanfed.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The kubelet does not verify the certificate of a probe. */}}
{{- define "wanfed.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* Where a component runs, and the spread of its pods over the nodes. */}}
{{- define "wanfed.placement" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "wanfed.selector" . | nindent 8 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The certificates of all pods of a component: DIR/POD/tls.crt and tls.key. */}}
{{- define "wanfed.certificateVolume" -}}
- name: certificates
  projected:
    defaultMode: 0440
    sources:
    {{- range (include "wanfed.pods" . | fromJson).names }}
      - secret:
          name: {{ . }}
          items:
            - {key: tls.crt, path: {{ . }}/tls.crt}
            - {key: tls.key, path: {{ . }}/tls.key}
    {{- end }}
{{- end -}}

{{- define "wanfed.certificateFlags" -}}
- --node=$(POD_NAME)
- --cert-file=/etc/wanfed-certificates/$(POD_NAME)/tls.crt
- --key-file=/etc/wanfed-certificates/$(POD_NAME)/tls.key
{{- end -}}

{{- define "wanfed.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .Values.server.storage.className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .Values.server.storage.size }}
{{- end -}}

{{/* Seconds until a gateway is killed: two longer than it takes to stop. */}}
{{- define "wanfed.gatewayGrace" -}}
{{- add (int .Values.gateway.shutdownDelaySeconds) (int .Values.gateway.drainSeconds) 5 -}}
{{- end -}}
