// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// voteFile is a file in Config.Dir: a copy of Raft's term and vote with a
// checksum. raft-wal keeps them without one, and a changed vote could elect two
// leaders. The copy is written before the original. Open uses the later of the
// two, and restores the other one. A file that is absent or damaged counts as
// equal to the original. A version without the file writes the original only,
// which is then the later one.
const voteFile = "vote"

// maxTermStep limits the difference between a term and its copy. A higher term
// is damage: it would use up the terms of the whole group.
const maxTermStep = 1 << 32

// Keys of Raft in the stable store.
const (
	termKey          = "CurrentTerm"
	voteTermKey      = "LastVoteTerm"
	voteCandidateKey = "LastVoteCand"
)

// vote is the term and the last vote of Raft.
type vote struct {
	term      uint64 // current term
	voteTerm  uint64 // term of the last vote
	candidate string // of the last vote
}

// with returns v after Raft has set key.
func (v vote) with(key string, value []byte) vote {
	switch {
	case key == voteCandidateKey:
		v.candidate = string(value)
	case len(value) != 8: // another key, or not a number
	case key == termKey:
		v.term = binary.LittleEndian.Uint64(value)
	case key == voteTermKey:
		v.voteTerm = binary.LittleEndian.Uint64(value)
	}
	return v
}

// encode returns the content of voteFile.
func (v vote) encode() []byte {
	b := fmt.Appendf(nil, "%d %d %q ", v.term, v.voteTerm, v.candidate)
	return fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli))
}

// parseVote is the inverse of encode. It reports whether b is intact.
func parseVote(b []byte) (v vote, ok bool) {
	_, err := fmt.Sscanf(string(b), "%d %d %q", &v.term, &v.voteTerm, &v.candidate)
	return v, err == nil && string(b) == string(v.encode())
}

// later returns the later of the original and its copy. If the terms of a vote
// are equal and the candidates differ, the copy is right: it was written first,
// or the original is damaged.
func later(original, copied vote) (vote, error) {
	if original.term > copied.term && original.term-copied.term > maxTermStep {
		return vote{}, fmt.Errorf("the term is %d, and its copy is %d", original.term, copied.term)
	}
	v := copied
	v.term = max(original.term, copied.term)
	if original.voteTerm > copied.voteTerm && original.voteTerm <= v.term {
		v.voteTerm, v.candidate = original.voteTerm, original.candidate
	}
	return v, nil
}

// openVote compares the term and the vote with their copy.
func (l *Log) openVote() error {
	var original vote
	for _, key := range []string{termKey, voteTermKey, voteCandidateKey} {
		value, err := l.WAL.Get([]byte(key))
		if err != nil {
			return err
		}
		original = original.with(key, value)
	}
	l.vote = original
	path := filepath.Join(l.cfg.Dir, voteFile)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	copied, ok := parseVote(b)
	if !ok {
		return nil // the next write of the term or the vote writes the file
	}
	v, err := later(original, copied)
	if err != nil {
		return fmt.Errorf("%w: wal-meta.db in %s: %w", ErrDamaged, l.cfg.Dir, err)
	}
	if v == original {
		return nil
	}
	l.cfg.Logger.Warn("term or vote of raft restored from its copy", "term", v.term, "file", path)
	number := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	return errors.Join(
		l.setStable(termKey, number(v.term)),
		l.setStable(voteTermKey, number(v.voteTerm)),
		l.setStable(voteCandidateKey, []byte(v.candidate)))
}

// setStable writes a value to the copy and then to the stable store. The caller
// holds l.mu, except in Open.
func (l *Log) setStable(key string, value []byte) error {
	v := l.vote.with(key, value)
	if v != l.vote {
		if err := atomicfile.WriteFile(filepath.Join(l.cfg.Dir, voteFile), v.encode(), 0o600); err != nil {
			return err
		}
	}
	if err := l.WAL.Set([]byte(key), value); err != nil {
		return err
	}
	l.vote = v
	return nil
}
