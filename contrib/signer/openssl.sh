#!/bin/sh
# signer_command of a wanfed server: issues certificates with OpenSSL 3.
#
# The directory SIGNER_DIR (default /etc/wanfed/signer) has dc.pem and the key of
# the CA of the datacenter, and, in the primary, root.pem and the key of the CA
# that signs the CAs of new datacenters. DC_KEY and ROOT_KEY are the keys: files,
# or PKCS #11 URIs, such as pkcs11:token=wanfed;object=dc, with an OpenSSL whose
# configuration loads the provider pkcs11. OPENSSL_ARGS has further arguments of
# "openssl ca", such as -passin file:/run/credentials/passphrase.
set -eu
umask 077
dir=${SIGNER_DIR:-/etc/wanfed/signer}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/csr"
: >"$work/index"

if [ "$WANFED_SIGN_ROLE" = datacenter ]; then
	cert=$dir/root.pem key=${ROOT_KEY:-$dir/root-key.pem} section=authority
	constraints=
	for name in $(echo "$WANFED_SIGN_PERMITTED_DNS" | tr , ' '); do
		constraints="$constraints,permitted;DNS:$name"
	done
	for network in $(echo "$WANFED_SIGN_PERMITTED_NETWORKS" | tr , ' '); do
		case $network in # OpenSSL has no prefix lengths
		127.0.0.0/8) network=127.0.0.0/255.0.0.0 ;;
		::1/128) network=::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ;;
		*) echo "network $network is not supported" >&2 && exit 1 ;;
		esac
		constraints="$constraints,permitted;IP:$network"
	done
	extensions="basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,digitalSignature,keyCertSign,cRLSign
nameConstraints = critical$constraints"
else
	cert=$dir/dc.pem key=${DC_KEY:-$dir/dc-key.pem} section=peer
	names=
	for name in $(echo "$WANFED_SIGN_DNS_NAMES" | tr , ' '); do names="$names,DNS:$name"; done
	for ip in $(echo "$WANFED_SIGN_IPS" | tr , ' '); do names="$names,IP:$ip"; done
	extensions="basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = $WANFED_SIGN_USAGES
subjectAltName = ${names#,}"
fi

cat >"$work/conf" <<END
[ca]
default_ca = wanfed
[wanfed]
database = $work/index
new_certs_dir = $work
default_md = default
rand_serial = yes
unique_subject = no
policy = any
[any]
organizationalUnitName = optional
commonName = supplied
[$section]
$extensions
END

time() { echo "$1" | tr -d 'T:-'; }
subject=${WANFED_SIGN_UNIT:+/OU=$WANFED_SIGN_UNIT}/CN=$WANFED_SIGN_COMMON_NAME
# shellcheck disable=SC2086
openssl ca -batch -notext -config "$work/conf" -extensions "$section" -in "$work/csr" -out "$work/cert" \
	-cert "$cert" -keyfile "$key" -subj "$subject" \
	-startdate "$(time "$WANFED_SIGN_NOT_BEFORE")" -enddate "$(time "$WANFED_SIGN_NOT_AFTER")" \
	${OPENSSL_ARGS:-} >/dev/null 2>"$work/log" || { tail -n 3 "$work/log" | tr '\n' ' ' >&2; exit 1; }
cat "$work/cert"
# The CA of a datacenter is an intermediate, which peers need.
if [ "$section" = peer ]; then cat "$cert"; fi
