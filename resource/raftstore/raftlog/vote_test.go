// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// setVote stores a term and a vote in l as Raft does.
func setVote(t *testing.T, l *Log, v vote) {
	t.Helper()
	err := errors.Join(l.SetUint64([]byte(termKey), v.term), l.SetUint64([]byte(voteTermKey), v.voteTerm),
		l.Set([]byte(voteCandidateKey), []byte(v.candidate)))
	if err != nil {
		t.Fatal(err)
	}
}

// TestOpen_Vote damages the term and the vote, or their copy, while the log is
// closed.
func TestOpen_Vote(t *testing.T) {
	const maxTerm = 1 << 60
	stored := vote{7, 7, "srv2"}
	for name, tt := range map[string]struct {
		original vote // written without the copy; zero: none
		file     string
		want     vote
		err      string
	}{
		"intact":              {want: stored},
		"lower term":          {original: vote{6, 7, "srv2"}, want: stored},
		"lower vote":          {original: vote{7, 5, "srv2"}, want: stored},
		"another candidate":   {original: vote{7, 7, "srv3"}, want: stored},
		"impossible vote":     {original: vote{7, 9, "srv3"}, want: stored},
		"impossible term":     {original: vote{maxTerm, 7, "srv2"}, err: "the term is 1152921504606846976, and its copy is 7"},
		"an older version":    {original: vote{9, 8, "srv3"}, want: vote{9, 8, "srv3"}},
		"damaged copy":        {file: "7 7 \"srv3\" 00000000\n", want: stored},
		"no copy":             {file: "-", want: stored},
		"copy with other end": {file: "7 7 \"srv2\" ", want: stored},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := mustOpenTest(t, dir)
			setVote(t, l, stored)
			if tt.original != (vote{}) {
				number := func(key string, n uint64) error { return l.WAL.SetUint64([]byte(key), n) }
				err := errors.Join(number(termKey, tt.original.term), number(voteTermKey, tt.original.voteTerm),
					l.WAL.Set([]byte(voteCandidateKey), []byte(tt.original.candidate)))
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "wal", voteFile)
			var err error
			switch tt.file {
			case "":
			case "-":
				err = os.Remove(path)
			default:
				err = os.WriteFile(path, []byte(tt.file), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			l, err = openTest(t, dir, func(error) {})
			if tt.err != "" {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("Open() = %v, want ErrDamaged with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			term, err1 := l.GetUint64([]byte(termKey))
			voteTerm, err2 := l.GetUint64([]byte(voteTermKey))
			candidate, err3 := l.Get([]byte(voteCandidateKey))
			if got := (vote{term, voteTerm, string(candidate)}); got != tt.want || errors.Join(err1, err2, err3) != nil {
				t.Errorf("term and vote = %+v, %v, want %+v", got, errors.Join(err1, err2, err3), tt.want)
			}
		})
	}
}
