// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

// A snapshot file is a header of HeaderSize bytes, followed by data in the
// format of package memory. The header is text:
//
//	wanfed snapshot file 1
//	{"datacenter":"dc1", ...}     the Manifest, as JSON in one line
//	9f86d081884c7d65...           SHA-256 of both lines with their newlines, in hex
//	                              spaces up to HeaderSize, the last byte a newline
//
// The number in the first line is the version of the format. A program rejects
// a version that is later than its own.
const (
	archiveMagic  = "wanfed snapshot file "
	archiveFormat = 1
	// HeaderSize is the length of the header of a snapshot file, in bytes.
	HeaderSize = 1024
	// MaxArchiveSize bounds the data of a snapshot file, in bytes.
	MaxArchiveSize = 16 << 30
)

// Manifest describes a snapshot file.
type Manifest struct {
	// Version, Datacenter and Node describe the server that wrote the file.
	Version    string    `json:"version"`
	Datacenter string    `json:"datacenter"`
	Node       string    `json:"node"`
	CreatedAt  time.Time `json:"created_at"`
	// Index is the store index of the last change in the snapshot. Term is the
	// Raft term of the leader.
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	// Size is the length of the data in bytes. SHA256 is the checksum of the
	// data in hex.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Stale is true if Node saved its own state without its leader.
	// Acknowledged writes that Node did not have are missing. Unapplied is the
	// number of entries at the end of its log that it had not applied.
	Stale     bool   `json:"stale,omitempty"`
	Unapplied uint64 `json:"unapplied,omitempty"`
}

// ManifestFromProto converts m to a Manifest. A missing field is zero.
func ManifestFromProto(m *pb.SnapshotManifest) Manifest {
	return Manifest{
		Version: m.GetVersion(), Datacenter: m.GetDatacenter(), Node: m.GetNode(), CreatedAt: m.GetCreatedAt().AsTime(),
		Index: m.GetIndex(), Term: m.GetTerm(), Size: m.GetSize(), SHA256: m.GetSha256(),
		Stale: m.GetStale(), Unapplied: m.GetUnapplied(),
	}
}

// Proto converts m to a protobuf message.
func (m Manifest) Proto() *pb.SnapshotManifest {
	return &pb.SnapshotManifest{
		Version: m.Version, Datacenter: m.Datacenter, Node: m.Node, CreatedAt: timestamppb.New(m.CreatedAt),
		Index: m.Index, Term: m.Term, Size: m.Size, Sha256: m.SHA256, Stale: m.Stale, Unapplied: m.Unapplied,
	}
}

// Header returns the header of a snapshot file with manifest m.
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

// invalid returns a resource.ErrInvalid for the named object. The format
// describes the fault.
func invalid(object, format string, args ...any) error {
	return fmt.Errorf("%w %s: %w", resource.ErrInvalid, object, fmt.Errorf(format, args...))
}

// check returns a resource.ErrInvalid if no server can have written m.
func (m Manifest) check() error {
	sum, err := hex.DecodeString(m.SHA256)
	switch {
	case tlsutil.CheckLabel(m.Datacenter) != nil:
		return invalid("manifest", "datacenter %q is not a datacenter name", m.Datacenter)
	case tlsutil.CheckLabel(m.Node) != nil:
		return invalid("manifest", "node %q is not a node name", m.Node)
	case len(m.Version) > 128:
		return invalid("manifest", "version is longer than 128 bytes")
	case m.Size < 1 || m.Size > MaxArchiveSize:
		return invalid("manifest", "size %d is not within 1 and %d bytes", m.Size, int64(MaxArchiveSize))
	case m.Index == 0:
		return invalid("manifest", "index is 0")
	case err != nil || len(sum) != sha256.Size:
		return invalid("manifest", "sha256 is not %d bytes in hex", sha256.Size)
	}
	return nil
}

// CheckDatacenter returns a resource.ErrInvalid unless the snapshot was taken
// in datacenter dc.
func (m Manifest) CheckDatacenter(dc string) error {
	if m.Datacenter != dc {
		return invalid("snapshot", "it is of datacenter %s, not of %s", m.Datacenter, dc)
	}
	return nil
}

// ParseHeader reads the header of a snapshot file. Every error is a
// resource.ErrInvalid that names the fault.
func ParseHeader(b []byte) (Manifest, error) {
	var m Manifest
	rest, ok := bytes.CutPrefix(b, []byte(archiveMagic))
	if !ok {
		return m, invalid("snapshot file", "it does not begin with %q", strings.TrimSpace(archiveMagic))
	}
	format, rest, ok := bytes.Cut(rest, []byte("\n"))
	switch n, err := strconv.ParseUint(string(format), 10, 31); {
	case !ok || err != nil:
		return m, invalid("snapshot file", "its first line is damaged")
	case n > archiveFormat:
		return m, invalid("snapshot file", "its format is %d, and this version of wanfed knows %d: use a newer one", n,
			archiveFormat)
	case len(b) < HeaderSize:
		return m, invalid("snapshot file", "it is cut off within its header, after %d bytes", len(b))
	}
	text, rest, _ := bytes.Cut(rest, []byte("\n"))
	written, rest, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return m, invalid("snapshot file", "its header is damaged")
	}
	sum := sha256.Sum256(b[:len(archiveMagic)+len(format)+1+len(text)+1])
	if string(written) != hex.EncodeToString(sum[:]) || string(bytes.TrimLeft(rest, " ")) != "\n" {
		return m, invalid("snapshot file", "its header is damaged: the checksum is another")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, invalid("snapshot file", "its manifest: %w", err)
	}
	if err := m.check(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// ReadArchive reads a snapshot file to its end and checks the header and the
// data. It holds one resource in memory at a time. Each error except a read
// error is a resource.ErrInvalid.
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

// checkData reads the data that m describes, and checks that r ends after the
// data. After a read error, r must return the error again: checkData thereby
// distinguishes it from damaged data.
func checkData(r io.Reader, m Manifest) (memory.SnapshotTotals, error) {
	limited, checksum := &io.LimitedReader{R: r, N: m.Size}, sha256.New()
	data := io.TeeReader(limited, checksum)
	totals, scanErr := memory.ScanSnapshot(data)
	if _, err := io.Copy(io.Discard, data); err != nil {
		return totals, err
	}
	extra, _ := io.ReadFull(r, make([]byte, 1))
	switch sum := hex.EncodeToString(checksum.Sum(nil)); {
	case limited.N > 0:
		return totals, invalid("snapshot", "it is cut off, with %d of %d bytes of data", m.Size-limited.N, m.Size)
	case extra > 0:
		return totals, invalid("snapshot", "something follows its %d bytes of data", m.Size)
	case sum != m.SHA256:
		return totals, invalid("snapshot", "it is damaged: the data's SHA-256 is %s, not %s as in its manifest",
			sum, m.SHA256)
	case scanErr != nil:
		return totals, invalid("snapshot", "%w", scanErr)
	case totals.Index != m.Index:
		return totals, invalid("snapshot", "its data's index is %d, not %d as in its manifest", totals.Index, m.Index)
	}
	return totals, nil
}

// ArchiveFile is a snapshot file that is being written. The data go to a
// temporary file in the same directory. Commit links the temporary file to its
// final name, so a file with that name is always complete. Commit never
// replaces a file.
type ArchiveFile struct {
	path     string
	tmp      *os.File
	size     int64     // length of the data in bytes
	checksum hash.Hash // SHA-256 of the data
}

// CreateArchive begins a snapshot file with mode 0600. The caller calls Commit
// or Abort.
func CreateArchive(path string) (*ArchiveFile, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s exists: choose another name, or move it away", path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp") // 0600
	if err != nil {
		return nil, fmt.Errorf("write snapshot file: %w", err)
	}
	a := &ArchiveFile{path: path, tmp: tmp, checksum: sha256.New()}
	if _, err := tmp.Seek(HeaderSize, io.SeekStart); err != nil {
		return nil, errors.Join(err, a.Abort())
	}
	return a, nil
}

// Write appends p to the data.
func (a *ArchiveFile) Write(p []byte) (int, error) {
	n, err := a.tmp.Write(p)
	a.size += int64(n)
	a.checksum.Write(p[:n])
	return n, err
}

// Commit writes the header and durably completes the file. It returns an error
// if the data do not match m.
func (a *ArchiveFile) Commit(m Manifest) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write snapshot file %s: %w", a.path, err), a.Abort())
		}
	}()
	if sum := hex.EncodeToString(a.checksum.Sum(nil)); a.size != m.Size || sum != m.SHA256 {
		return fmt.Errorf(
			"%d bytes of data with SHA-256 %s were received, not %d with %s: they were damaged on the way",
			a.size, sum, m.Size, m.SHA256)
	}
	header, err := m.Header()
	if err != nil {
		return err
	}
	if _, err := a.tmp.WriteAt(header, 0); err != nil {
		return err
	}
	if err := a.tmp.Sync(); err != nil {
		return err
	}
	if err := os.Link(a.tmp.Name(), a.path); err != nil { // a rename would replace a file
		return err
	}
	return errors.Join(a.Abort() /* the final name remains */, atomicfile.SyncDir(filepath.Dir(a.path)))
}

// Abort removes the temporary file. Abort is idempotent, and has no effect
// after Commit.
func (a *ArchiveFile) Abort() error {
	if err := a.tmp.Close(); errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err := os.Remove(a.tmp.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
