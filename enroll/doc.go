// SPDX-License-Identifier: MPL-2.0

// Package enroll gives a machine its certificate in exchange for a token, and
// renews that certificate.
//
// An operator creates a [Token] and stores its resource, which has only a public
// key. The text of the token goes to the new machine. There, [Redeem] sends the
// public key of a new private key to the server that the token names, and
// returns the certificate. The server runs a [Service], which signs with the keys
// of an [Authority].
//
//	t, err := enroll.New(pb.EnrollmentTokenText{...})      // operator
//	r, err := t.Resource(time.Now().Add(15*time.Minute), 1)
//	fmt.Println(t)
//	...
//	t, err := enroll.Parse(text)                            // new machine
//	result, err := enroll.Redeem(ctx, t, enroll.Request{Key: key})
//
// # Protocol
//
// The client opens a TLS 1.3 connection to one of the addresses in the token,
// usually of a gateway, with the SNI of the server and the protocol id
// wanfed/enroll/1 alone. It has no certificate. The server sends its certificate,
// the intermediates and the CAs that it trusts. The client accepts only a
// certificate of that server, under a CA whose SHA-256 is in the token.
//
// Each side then sends one message: a length of 4 bytes (big endian), and that
// many bytes of a pb.SignedEnrollRequest or a pb.EnrollResponse, at most 64 KiB.
// The signature is made by the Ed25519 key of the token (RFC 8032). It covers the
// request and a value of the TLS connection (RFC 8446 section 7.5, RFC 9266). A
// request is therefore valid only in the connection in which it was made, and the
// secret never leaves the two ends that know it.
//
// # Authorization
//
// A token is for one datacenter and one role, has an expiry and a number of uses.
// The server decreases the uses in the store, by compare-and-swap, before it
// sends a certificate. The names in the certificate come from the token and the
// store, and never from the certificate request. All faults of a token have one
// response, [ErrToken]. Only the log and the records of calls have the reason.
//
// # Renewal
//
// A [Renewer] runs in each process with a certificate of enrolment. At two thirds
// of the life, it makes a new key and calls pb.EnrollmentService at a server of its
// datacenter: a [RenewalService], which issues the certificate or calls the server
// with the CA. The request has the present certificate and a signature by its key.
// The new certificate has the same role and names. A certificate that is expired,
// revoked, or of another PKI is not renewed.
//
// # Keys
//
// Keys of an Authority are files, which [CAKeys] encrypts with a passphrase. A
// [SignerCommand] issues certificates without them: what the program returns is
// used only if it is exactly the certificate that was requested.
//
// # Replacement of the CA
//
// While the CA of all datacenters is replaced (package trust), [Authority] has both
// CAs. A [Reissuer] runs in each server: if it has the CA of its datacenter, it
// requests the successor below the new CA, with a signature by the key of the
// present one. A Renewer then renews its certificate at once. [Acknowledged] states
// who has not completed a phase, by the certificates in use.
//
// # Limits
//
// A Service serves at most 32 clients at the same time, 50 in a second, and each
// for at most 10 s. A SignerCommand runs 4 times at the same time, each for at
// most 8 s.
package enroll
