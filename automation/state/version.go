// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/resource"
)

// ErrNoVersion: the task has no such version of a state.
var ErrNoVersion = errors.New("there is no such version of the state")

// ErrObsolete: the state does not continue the newest version. Import stores it
// only if it is forced.
var ErrObsolete = errors.New("the state does not continue the stored one")

// ErrSuperseded: a later run has stored a version, which continues the state
// from before the run of this state.
var ErrSuperseded = errors.New("a later run has stored its state")

// Get returns a version of the state of a task, and its description. Number 0 is
// the newest version. The error is ErrNoVersion if the task does not have the
// version. Any other error of its content names task, version, key and remedy.
func (s *Store) Get(ctx context.Context, name string, number uint64) ([]byte, *pb.TaskStateVersion, error) {
	keys, err := s.keys()
	if err != nil {
		return nil, nil, err
	}
	st, err := s.Read(ctx, name)
	if errors.Is(err, resource.ErrNotFound) {
		st, err = &pb.TaskState{}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	v := find(st, number)
	switch {
	case v == nil && number == 0:
		return nil, nil, fmt.Errorf("task %s has no state: %w", name, ErrNoVersion)
	case v == nil:
		return nil, nil, fmt.Errorf("task %s, version %d: %w: list those that are kept: wanfed task state versions %s",
			name, number, ErrNoVersion, name)
	}
	data, err := keys.decode(name, v, len(v.Chunks), func(i int) ([]byte, error) { return s.readChunk(ctx, v.Chunks[i]) })
	return data, v, err
}

// find returns the version with a number, or nil. Number 0 is the newest version.
func find(st *pb.TaskState, number uint64) *pb.TaskStateVersion {
	return versionWith(st, func(v *pb.TaskStateVersion) bool { return number == 0 || v.Number == number })
}

func (s *Store) keys() (*Keys, error) {
	if s.cfg.KeyFile == "" {
		return nil, errors.New("the states of tasks are encrypted: set the key file")
	}
	return ReadKeys(s.cfg.KeyFile)
}

// readChunk returns the content of a chunk, or a damagedError.
func (s *Store) readChunk(ctx context.Context, name string) (content []byte, err error) {
	err = retry(ctx, func() error {
		id := resource.ID(task.ChunkType, name)
		resp, err := call(resource.WithConsistency(ctx, resource.Strong), s.cfg.Client.Read, &pb.ReadRequest{Id: id})
		if errors.Is(err, resource.ErrNotFound) {
			return damagedError("is missing")
		}
		if err != nil {
			return err
		}
		c, err := resource.Decode[*pb.TaskStateChunk](resp.GetResource())
		content = c.GetContent()
		return err
	})
	if err == nil {
		err = checkChunk(name, content)
	}
	return content, err
}

// PutOptions describe a state for Put.
type PutOptions struct {
	// Run is the id of the run that stores the state. Empty: an operator's command.
	Run string
	// Check decides whether the state may be stored after the state st. Its error
	// is that of Put. It may be called several times. Nil: permitted.
	Check func(st *pb.TaskState) error
}

// Put stores a state of Terraform as the newest version, and returns the
// version. Beyond task.MaxVersions, it deletes the oldest one. If the newest
// version has the same content, Put stores nothing and returns that version. The
// errors are those of Update and of Check, and errors for invalid data. Put
// blocks for one commit per MiB of the encrypted state.
func (s *Store) Put(ctx context.Context, c Claim, data []byte, o PutOptions) (v *pb.TaskStateVersion, err error) {
	keys, err := s.keys()
	if err == nil {
		_, err = s.Claim(ctx, c) // creates the state, which owns the chunks
	}
	if err != nil {
		return nil, err
	}
	p := putting{store: s, keys: keys, claim: c, data: data, o: o}
	st, err := s.Update(ctx, c, func(st *pb.TaskState) error {
		v, err = p.put(ctx, st)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.deleteUnused(ctx, st, p.unused)
	return v, nil
}

// putting is a call of Put.
type putting struct {
	store *Store
	keys  *Keys
	claim Claim
	data  []byte
	o     PutOptions

	version *pb.TaskStateVersion // that the last attempt has encoded
	chunks  [][]byte
	// unused has the names of chunks that may not be in the new state.
	unused []string
}

// put stores the chunks and adds the version to st. A chunk that an earlier
// attempt has stored is stored again: see Collect.
func (p *putting) put(ctx context.Context, st *pb.TaskState) (*pb.TaskStateVersion, error) {
	head := find(st, 0)
	if head != nil && p.keys.isContent(head, p.data) {
		return head, nil
	}
	if p.o.Check != nil {
		if err := p.o.Check(st); err != nil {
			return nil, err
		}
	}
	name := p.claim.Task
	if number := head.GetNumber() + 1; p.version.GetNumber() != number {
		p.unused = append(p.unused, p.version.GetChunks()...)
		var err error
		if p.version, p.chunks, err = p.keys.keys[0].encode(name, number, p.data); err != nil {
			return nil, err
		}
		p.version.Run, p.version.StoredAt = p.o.Run, timestamppb.Now()
		for _, content := range p.chunks {
			p.version.Chunks = append(p.version.Chunks, chunkName(name, content))
		}
	}
	for i, content := range p.chunks {
		if err := p.store.writeChunk(ctx, name, p.version.Chunks[i], content); err != nil {
			return nil, err
		}
	}
	st.Versions = slices.Insert(st.Versions, 0, p.version)
	kept := min(len(st.Versions), task.MaxVersions)
	for _, v := range st.Versions[kept:] {
		p.unused = append(p.unused, v.Chunks...)
	}
	st.Versions = st.Versions[:kept]
	return p.version, nil
}

// isContent reports whether v has the content data.
func (k *Keys) isContent(v *pb.TaskStateVersion, data []byte) bool {
	used, ok := k.find(v.Key)
	return ok && v.Size == uint64(len(data)) && hmac.Equal(used.digest(data), v.Digest)
}

func (s *Store) writeChunk(ctx context.Context, owner, name string, content []byte) error {
	data, err := anypb.New(&pb.TaskStateChunk{Content: content})
	if err != nil {
		return err
	}
	return s.write(ctx, &pb.Resource{Id: resource.ID(task.ChunkType, name), Owner: task.StateID(owner), Data: data})
}

// deleteUnused deletes those of the chunks that no version of st has. Collect
// deletes those that remain after an error.
func (s *Store) deleteUnused(ctx context.Context, st *pb.TaskState, names []string) {
	for _, name := range names {
		if slices.ContainsFunc(st.Versions, func(v *pb.TaskStateVersion) bool { return slices.Contains(v.Chunks, name) }) {
			continue
		}
		if _, err := call(ctx, s.cfg.Client.Delete, &pb.DeleteRequest{Id: resource.ID(task.ChunkType, name)}); err != nil {
			return
		}
	}
}

// Restore stores the content of an older version as the newest version, with the
// next serial, and returns the new version. The error is ErrNoVersion if the
// task does not have the version, and a *LockedError if the state is locked.
func (s *Store) Restore(ctx context.Context, c Claim, number uint64) (*pb.TaskStateVersion, error) {
	old, _, err := s.Get(ctx, c.Task, number)
	if err != nil {
		return nil, err
	}
	st, err := s.Read(ctx, c.Task)
	if err != nil {
		return nil, err
	}
	head := find(st, 0)
	data, err := withSerial(old, head.GetSerial()+1)
	if err != nil {
		return nil, err
	}
	return s.Put(ctx, c, data, PutOptions{Check: func(st *pb.TaskState) error {
		if now := find(st, 0); now.GetNumber() != head.GetNumber() {
			return fmt.Errorf("restore version %d: version %d was stored at the same time: try again", number, now.GetNumber())
		}
		return c.checkLock(st, "")
	}})
}

// withSerial returns a state with another serial.
func withSerial(data []byte, serial uint64) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, errors.New("the state is not a JSON object")
	}
	fields["serial"] = strconv.AppendUint(nil, serial, 10)
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(fields)
	return out.Bytes(), err
}

// ImportOptions describe a state for Import.
type ImportOptions struct {
	// Run is the id of the run that could not store the state. Empty: an
	// operator's command. If a version has the content already, nothing is stored.
	Run string
	// Force permits another lineage and an older serial.
	Force bool
}

// Import stores a state from a file as the newest version. Unless it is forced,
// it refuses a state of another lineage, and one with an older serial than the
// newest version, as Terraform does. The error is a *LockedError if the state is
// locked. A daemon's Import ignores the lock of a run, which has ended. A state
// without a lineage gets one that its content determines: Terraform sets the
// lineage of a new state only when it can read that no older one exists.
//
// The error is ErrSuperseded if a run that began after o.Run has stored a version.
// The serial does not show this: Terraform increments it at each attempt to store
// a state.
func (s *Store) Import(ctx context.Context, c Claim, data []byte, o ImportOptions) (*pb.TaskStateVersion, error) {
	data = withLineage(data)
	serial, lineage, err := parseHeader(data)
	if err != nil {
		return nil, fmt.Errorf("import a state for task %s: %w", c.Task, err)
	}
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	var stored *pb.TaskStateVersion
	v, err := s.Put(ctx, c, data, PutOptions{Run: o.Run, Check: func(st *pb.TaskState) error {
		if err := c.checkLock(st, ""); err != nil {
			return err
		}
		if o.Run != "" {
			if stored = versionWith(st, func(v *pb.TaskStateVersion) bool { return keys.isContent(v, data) }); stored != nil {
				return errStored
			}
			if later := versionWith(st, func(v *pb.TaskStateVersion) bool { return isLater(st, v.Run, o.Run) }); later != nil {
				return fmt.Errorf("%w: run %s has stored version %d", ErrSuperseded, later.Run, later.Number)
			}
		}
		head := find(st, 0)
		if head == nil || o.Force {
			return nil
		}
		if lineage != head.Lineage {
			return fmt.Errorf("%w: it has lineage %s, and version %d has lineage %s: it is the state of other infrastructure",
				ErrObsolete, lineage, head.Number, head.Lineage)
		}
		if serial <= head.Serial {
			return fmt.Errorf("%w: it has serial %d, and version %d has serial %d", ErrObsolete, serial, head.Number, head.Serial)
		}
		return nil
	}})
	if errors.Is(err, errStored) {
		return stored, nil
	}
	return v, err
}

// errStored: a version has the content that is to be stored.
var errStored = errors.New("the state is stored")

// versionWith returns the newest version for which f is true, or nil.
func versionWith(st *pb.TaskState, f func(*pb.TaskStateVersion) bool) *pb.TaskStateVersion {
	i := slices.IndexFunc(st.Versions, f)
	if i < 0 {
		return nil
	}
	return st.Versions[i]
}

// isLater reports whether the run id began after the run before. The order is
// that of st.Runs, newest first: ids have the times of several clocks. A run that
// is not in the list began before all that are.
func isLater(st *pb.TaskState, id, before string) bool {
	i, j := slices.Index(st.Runs, id), slices.Index(st.Runs, before)
	return i >= 0 && (j < 0 || i < j)
}
