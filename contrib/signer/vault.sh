#!/bin/sh
# signer_command of a wanfed server: issues certificates with HashiCorp Vault. It
# needs vault, jq, VAULT_ADDR and VAULT_TOKEN. docs/issuing-keys.md has the role
# of Vault. No test executes this file.
set -eu
if [ "$WANFED_SIGN_ROLE" = datacenter ]; then
	echo "this Vault signs no CAs of datacenters" >&2
	exit 1
fi
role=wanfed-peer # serverAuth and clientAuth
[ "$WANFED_SIGN_USAGES" = clientAuth ] && role=wanfed-client
vault write -format=json "pki/sign/$role" csr=- common_name="$WANFED_SIGN_COMMON_NAME" \
	alt_names="$WANFED_SIGN_DNS_NAMES" ip_sans="$WANFED_SIGN_IPS" \
	exclude_cn_from_sans=true ttl="${WANFED_SIGN_SECONDS}s" |
	jq -r '.data.certificate, .data.ca_chain[]'
