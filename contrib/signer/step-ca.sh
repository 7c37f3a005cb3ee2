#!/bin/sh
# signer_command of a wanfed server: issues certificates with step-ca. It needs
# step, STEP_CA_URL, STEP_ROOT, and a JWK provisioner "wanfed" whose password is
# in /etc/wanfed/signer/provisioner. docs/issuing-keys.md has its template. No test
# executes this file.
set -eu
if [ "$WANFED_SIGN_ROLE" = datacenter ]; then
	echo "this step-ca signs no CAs of datacenters" >&2
	exit 1
fi
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/csr"
set -- --provisioner wanfed --provisioner-password-file /etc/wanfed/signer/provisioner
for name in $(echo "$WANFED_SIGN_DNS_NAMES,$WANFED_SIGN_IPS" | tr , ' '); do set -- "$@" --san "$name"; done
token=$(step ca token "$WANFED_SIGN_COMMON_NAME" "$@")
step ca sign --token "$token" --not-after "${WANFED_SIGN_SECONDS}s" --set "unit=$WANFED_SIGN_UNIT" \
	--set "usages=$WANFED_SIGN_USAGES" "$work/csr" "$work/cert" >&2
cat "$work/cert"
