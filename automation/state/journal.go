// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource"
)

const (
	// journalSuffix ends the name of a file with a state that waits for a
	// server. keptSuffix ends the name of a file with a state that cannot be
	// stored.
	journalSuffix = ".pending"
	keptSuffix    = ".kept"
	// maxJournal bounds such a file, in bytes.
	maxJournal = MaxSize + MaxSize/8
)

// upload is a state that Terraform has sent.
type upload struct {
	claim Claim
	run   string
	lock  string // id of the lock under which it was sent; empty: none
	data  []byte
}

// journalPath returns the path of the file with the pending state of a task.
func (b *Backend) journalPath(name string) string {
	return filepath.Join(b.cfg.Dir, name+journalSuffix)
}

// writeJournal writes u to a file, encrypted, in place of an earlier state of
// the run.
func (b *Backend) writeJournal(u upload) error { return b.write(b.journalPath(u.claim.Task), u) }

func (b *Backend) write(path string, u upload) error {
	keys, err := b.cfg.Store.keys()
	if err != nil {
		return err
	}
	v, chunks, err := keys.keys[0].encode(u.claim.Task, 0, u.data)
	if err != nil {
		return err
	}
	v.Run = u.run
	content, err := proto.Marshal(&pb.TaskStateJournal{
		Task: u.claim.Task, Instance: u.claim.Instance, Epoch: u.claim.Epoch, Lock: u.lock, Version: v, Chunks: chunks,
	})
	if err == nil {
		err = os.MkdirAll(b.cfg.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteFile(path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state of task %s to a file: %w", u.claim.Task, err)
	}
	return nil
}

func (b *Backend) removeJournal(name string) error {
	err := os.Remove(b.journalPath(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// OpenJournal returns the task and the state in a file that a Backend has kept.
// keyFile is the path of the key file.
func OpenJournal(path, keyFile string) (name string, data []byte, err error) {
	keys, err := ReadKeys(keyFile)
	if err != nil {
		return "", nil, err
	}
	u, err := readJournal(path, keys)
	return u.claim.Task, u.data, err
}

func readJournal(path string, keys *Keys) (upload, error) {
	f, err := os.Open(path)
	if err != nil {
		return upload{}, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err != nil {
		return upload{}, err
	}
	u, err := decodeJournal(content, keys)
	if err != nil {
		return upload{}, fmt.Errorf("read file %s: %w", path, err)
	}
	return u, nil
}

func decodeJournal(content []byte, keys *Keys) (upload, error) {
	var j pb.TaskStateJournal
	if err := proto.Unmarshal(content, &j); err != nil || task.CheckName(j.Task) != nil || j.Version == nil {
		return upload{}, errors.New("it is damaged, or not a state that a daemon has kept")
	}
	j.Version.Number = 0
	data, err := keys.decode(j.Task, j.Version, len(j.Chunks), func(i int) ([]byte, error) { return j.Chunks[i], nil })
	if err != nil {
		return upload{}, err
	}
	c := Claim{Task: j.Task, Instance: j.Instance, Epoch: j.Epoch}
	return upload{claim: c, run: j.Version.Run, lock: j.Lock, data: data}, nil
}

// Replay stores the states that an earlier process of the daemon has written to
// files, because no server responded. The daemon calls it before it claims
// tasks: its new claims replace those of the files. A state that cannot be
// stored any more, for example because another daemon has claimed the task,
// stays in a file, whose path is in the error.
func (b *Backend) Replay(ctx context.Context) error {
	entries, err := os.ReadDir(b.cfg.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the states that are not stored yet: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), journalSuffix); ok {
			errs = append(errs, b.deliver(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// deliver stores the pending state of a task, if there is one. A state that
// cannot be stored is not pending any more after that error.
func (b *Backend) deliver(ctx context.Context, name string) error {
	e := b.entry(name)
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	path := b.journalPath(name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	keys, err := b.cfg.Store.keys()
	if err != nil {
		return err
	}
	u, err := readJournal(path, keys)
	if err == nil {
		_, err = b.cfg.Store.Put(ctx, u.claim, u.data, PutOptions{Run: u.run, Check: u.isNext})
	}
	switch {
	case err == nil:
		return b.removeJournal(name)
	case isPending(err):
		return fmt.Errorf("the state of task %s is in file %s until a server stores it: %w", name, path, err)
	}
	return b.keep(name, err)
}

// keep renames the file with the pending state of a task, which cannot be stored
// because of err, and adds its path to err.
func (b *Backend) keep(name string, err error) error {
	kept := b.newKeptPath(name)
	if rerr := os.Rename(b.journalPath(name), kept); rerr != nil {
		return errors.Join(err, rerr)
	}
	return fmt.Errorf("the state of task %s is not stored and is kept in file %s: %w: compare it with the stored state, and "+
		"if it is right: wanfed task state import %s %s", name, kept, err, name, kept)
}

func (b *Backend) newKeptPath(name string) string {
	return filepath.Join(b.cfg.Dir, name+"."+resource.NewUID()+keptSuffix)
}

// Keep writes a state that cannot be stored any more to a file, encrypted, unless
// a file has it, and returns the path. run is the run that has left the state. A
// state without a lineage gets one, as in Import.
func (b *Backend) Keep(c Claim, run string, data []byte) (path string, err error) {
	keys, err := b.cfg.Store.keys()
	if err != nil {
		return "", err
	}
	data = withLineage(data)
	for _, path := range b.Kept(c.Task) {
		if u, err := readJournal(path, keys); err == nil && bytes.Equal(u.data, data) {
			return path, nil
		}
	}
	path = b.newKeptPath(c.Task)
	return path, b.write(path, upload{claim: c, run: run, data: data})
}

// Kept returns the paths of the files with states of a task that were not stored,
// until an operator removes them.
func (b *Backend) Kept(name string) []string {
	paths, _ := filepath.Glob(filepath.Join(b.cfg.Dir, name+".*"+keptSuffix))
	return paths
}

// isNext is a check for Put: u continues the newest version of st.
func (u upload) isNext(st *pb.TaskState) error {
	if st.Lock.GetId() != u.lock {
		if err := u.claim.checkLock(st, ""); err != nil {
			return err
		}
	}
	serial, lineage, err := parseHeader(u.data)
	if head := find(st, 0); err == nil && head != nil && (head.Lineage != lineage || head.Serial >= serial) {
		err = fmt.Errorf("version %d with serial %d was stored since", head.Number, head.Serial)
	}
	return err
}

// isPending reports whether a state may be stored later.
func isPending(err error) bool {
	return isTemporary(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
