// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// maxMessage is the maximum size of a message in bytes.
const maxMessage = 64 << 10

// timeout bounds one exchange, after the TLS handshake.
const timeout = 10 * time.Second

// ErrToken is the response to every request whose token is unknown, used,
// expired, or for another datacenter or role, or whose signature is wrong.
var ErrToken = errors.New("the token is not valid: it may be used, expired, or for another datacenter or role")

// writeMessage writes m with its length.
func writeMessage(w io.Writer, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("message of %d bytes: must have at most %d", len(b), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// readMessage reads a message that writeMessage has written.
func readMessage(r io.Reader, m proto.Message) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxMessage {
		return fmt.Errorf("message of %d bytes: must have at most %d", n, maxMessage)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// exporterLabel is the label of the value that binds a signature to a TLS
// connection (RFC 8446 section 7.5).
const exporterLabel = "EXPORTER-wanfed-enroll-1"

// signedText returns what the key of a token signs in connection c.
func signedText(c tls.ConnectionState, request []byte) ([]byte, error) {
	binding, err := c.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, fmt.Errorf("bind the request to the TLS connection: %w", err)
	}
	return append(append([]byte("wanfed enroll request 1\x00"), binding...), request...), nil
}

// sign returns the message for a request in connection c.
func (t *Token) sign(c tls.ConnectionState, r *pb.EnrollRequest) (*pb.SignedEnrollRequest, error) {
	b, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	text, err := signedText(c, b)
	if err != nil {
		return nil, err
	}
	return &pb.SignedEnrollRequest{Request: b, Signature: ed25519.Sign(t.key, text)}, nil
}
