// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

// A snapshot file is HeaderSize bytes of header and then the data, which package memory defines, to the end of the file. The
// header is text:
//
//	wanfed snapshot file 1
//	{"datacenter":"dc1", ...}     the Manifest, as JSON in one line
//	9f86d081884c7d65...           SHA-256 of both lines with their ends, in hex
//	                              spaces up to HeaderSize, the last byte a newline
//
// What is above that version another program must read.
const (
	archiveMagic  = "wanfed snapshot file "
	archiveFormat = 1
	// HeaderSize is how long the header of a snapshot file is, in bytes.
	HeaderSize = 1024
	// MaxArchiveSize bounds the data of a snapshot file, in bytes.
	MaxArchiveSize = 16 << 30
)

// Manifest says what a snapshot file is.
type Manifest struct {
	// Version of wanfed of the server that wrote it, Datacenter and Node are that server's.
	Version    string    `json:"version"`
	Datacenter string    `json:"datacenter"`
	Node       string    `json:"node"`
	CreatedAt  time.Time `json:"created_at"`
	// Index is the store index of the last change that is in it, Term the leader's.
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	// Size is that of the data in bytes, SHA256 its sum in hex.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// ManifestFromProto reads the message of a manifest; what is missing in it is zero.
func ManifestFromProto(m *pb.SnapshotManifest) Manifest {
	return Manifest{
		Version: m.GetVersion(), Datacenter: m.GetDatacenter(), Node: m.GetNode(), CreatedAt: m.GetCreatedAt().AsTime(),
		Index: m.GetIndex(), Term: m.GetTerm(), Size: m.GetSize(), SHA256: m.GetSha256(),
	}
}

// Message is m as a message.
func (m Manifest) Proto() *pb.SnapshotManifest {
	return &pb.SnapshotManifest{
		Version: m.Version, Datacenter: m.Datacenter, Node: m.Node, CreatedAt: timestamppb.New(m.CreatedAt),
		Index: m.Index, Term: m.Term, Size: m.Size, Sha256: m.SHA256,
	}
}

// Header returns the header of a snapshot file.
func (m Manifest) Header() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%d\n%s\n", archiveMagic, archiveFormat, text)
	sum := sha256.Sum256(b.Bytes())
	fmt.Fprintf(&b, "%x\n", sum)
	if b.Len() >= HeaderSize {
		return nil, fmt.Errorf("manifest of %d bytes is too long", len(text))
	}
	b.WriteString(strings.Repeat(" ", HeaderSize-1-b.Len()))
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// check returns an ErrInvalid for a Manifest that no server makes.
func (m Manifest) check() error {
	sum, err := hex.DecodeString(m.SHA256)
	switch {
	case tlsutil.CheckLabel(m.Datacenter) != nil:
		return fmt.Errorf("%w manifest: datacenter %q is no name of one", resource.ErrInvalid, m.Datacenter)
	case tlsutil.CheckLabel(m.Node) != nil:
		return fmt.Errorf("%w manifest: node %q is no name of one", resource.ErrInvalid, m.Node)
	case len(m.Version) > 128:
		return fmt.Errorf("%w manifest: version is longer than 128 bytes", resource.ErrInvalid)
	case m.Size < 1 || m.Size > MaxArchiveSize:
		return fmt.Errorf("%w manifest: size %d is not within 1 and %d bytes", resource.ErrInvalid, m.Size, int64(MaxArchiveSize))
	case m.Index == 0:
		return fmt.Errorf("%w manifest: index is 0", resource.ErrInvalid)
	case err != nil || len(sum) != sha256.Size:
		return fmt.Errorf("%w manifest: sha256 is not %d bytes in hex", resource.ErrInvalid, sha256.Size)
	}
	return nil
}

// CheckDatacenter returns an ErrInvalid unless the snapshot is of that datacenter.
func (m Manifest) CheckDatacenter(dc string) error {
	if m.Datacenter != dc {
		return fmt.Errorf("%w snapshot: it is of datacenter %s, not of %s", resource.ErrInvalid, m.Datacenter, dc)
	}
	return nil
}

// ParseHeader reads the header of a snapshot file. Its errors are ErrInvalid and say what is wrong.
func ParseHeader(b []byte) (Manifest, error) {
	var m Manifest
	rest, ok := bytes.CutPrefix(b, []byte(archiveMagic))
	if !ok {
		return m, fmt.Errorf("%w snapshot file: it does not begin with %q", resource.ErrInvalid, strings.TrimSpace(archiveMagic))
	}
	format, rest, ok := bytes.Cut(rest, []byte("\n"))
	switch n, err := strconv.ParseUint(string(format), 10, 31); {
	case !ok || err != nil:
		return m, fmt.Errorf("%w snapshot file: its first line is damaged", resource.ErrInvalid)
	case n > archiveFormat:
		return m, fmt.Errorf("%w snapshot file: its format is %d, and this version of wanfed knows %d: use a newer one", resource.ErrInvalid, n, archiveFormat)
	case len(b) < HeaderSize:
		return m, fmt.Errorf("%w snapshot file: it is cut off within its header, after %d bytes", resource.ErrInvalid, len(b))
	}
	text, rest, _ := bytes.Cut(rest, []byte("\n"))
	said, rest, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return m, fmt.Errorf("%w snapshot file: its header is damaged", resource.ErrInvalid)
	}
	sum := sha256.Sum256(b[:len(archiveMagic)+len(format)+1+len(text)+1])
	if string(said) != hex.EncodeToString(sum[:]) || string(rest) != strings.Repeat(" ", len(rest)-1)+"\n" {
		return m, fmt.Errorf("%w snapshot file: its header is damaged: the checksum is another", resource.ErrInvalid)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("%w snapshot file: its manifest: %w", resource.ErrInvalid, err)
	}
	if err := m.check(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// ReadArchive reads a snapshot file to its end and checks all of it. It keeps one resource at a time. Its errors are
// ErrInvalid, unless reading failed.
func ReadArchive(r io.Reader) (Manifest, memory.SnapshotTotals, error) {
	header := make([]byte, HeaderSize)
	n, err := io.ReadFull(r, header)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return Manifest{}, memory.SnapshotTotals{}, err
	}
	m, err := ParseHeader(header[:n])
	if err != nil {
		return m, memory.SnapshotTotals{}, err
	}
	totals, err := checkData(r, m)
	return m, totals, err
}

// checkData reads the data that a manifest describes, which is all that r has.
func checkData(r io.Reader, m Manifest) (memory.SnapshotTotals, error) {
	in := &summing{r: io.LimitReader(r, m.Size), sum: sha256.New()}
	totals, bad := memory.ScanSnapshot(in)
	if _, err := io.Copy(io.Discard, in); err != nil || in.err != nil {
		return totals, errors.Join(err, in.err)
	}
	var more [1]byte
	extra, _ := io.ReadFull(r, more[:])
	switch sum := hex.EncodeToString(in.sum.Sum(nil)); {
	case in.n < m.Size:
		return totals, fmt.Errorf("%w snapshot: it is cut off, with %d of %d bytes of data", resource.ErrInvalid, in.n, m.Size)
	case extra > 0:
		return totals, fmt.Errorf("%w snapshot: something follows its %d bytes of data", resource.ErrInvalid, m.Size)
	case sum != m.SHA256:
		return totals, fmt.Errorf("%w snapshot: it is damaged: the data's SHA-256 is %s, not %s as its manifest says", resource.ErrInvalid, sum, m.SHA256)
	case bad != nil:
		return totals, fmt.Errorf("%w snapshot: %w", resource.ErrInvalid, bad)
	case totals.Index != m.Index:
		return totals, fmt.Errorf("%w snapshot: its data's index is %d, not %d as its manifest says", resource.ErrInvalid, totals.Index, m.Index)
	}
	return totals, nil
}
