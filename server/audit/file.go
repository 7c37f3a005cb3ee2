// SPDX-License-Identifier: MPL-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/diskspace"
)

// stampFormat is the format of the time in the name of a rotated file, which is
// FILE.TIME. The names sort by time.
const stampFormat = "20060102T150405.000000000Z"

// file is the file of a Log. It is not safe for concurrent use.
type file struct {
	cfg  Config
	f    *os.File // nil: not open
	size int64
	torn bool // the last line may be incomplete
}

// open opens the file, if it is not open, and ends an incomplete last line.
func (f *file) open() error {
	if f.f != nil {
		return nil
	}
	opened, err := os.OpenFile(f.cfg.File, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := opened.Stat()
	if err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err = opened.ReadAt(last, info.Size()-1); err == nil || errors.Is(err, io.EOF) {
			f.torn, err = last[0] != '\n', nil
		}
	}
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	f.f, f.size = opened, info.Size()
	if f.size == 0 { // probably a new file: a crash must not remove its name
		return atomicfile.SyncDir(filepath.Dir(f.cfg.File))
	}
	return nil
}

// close closes the file. All its lines were synced.
func (f *file) close() {
	if f.f != nil {
		_ = f.f.Close()
	}
	f.f, f.torn = nil, false
}

// write appends all lines, or none. With Refuse it also syncs the file.
func (f *file) write(lines []entry) error {
	if err := f.open(); err != nil || len(lines) == 0 {
		return err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, e := range lines {
		if err := enc.Encode(e.line); err != nil { // a Line always has an encoding
			return err
		}
	}
	if f.cfg.MaxSize > 0 && f.size > 0 && f.size+int64(b.Len()) > f.cfg.MaxSize {
		if err := f.rotate(); err != nil {
			return fmt.Errorf("rotate: %w", err)
		}
	}
	data := b.Bytes()
	if f.torn {
		data = append([]byte("\n"), data...)
	}
	n, err := f.f.Write(data)
	if err == nil && f.cfg.WhenFull == Refuse {
		err = f.f.Sync()
	}
	f.size += int64(n)
	if err != nil {
		f.undo(int64(n))
		return err
	}
	f.torn = false
	return nil
}

// checkSpace returns an error if the disk has less than minFree bytes. The lines
// of calls that have already written then still fit on the disk.
func (f *file) checkSpace() error {
	free, err := diskspace.Free(filepath.Dir(f.cfg.File))
	if err != nil {
		return err
	}
	if free < minFree {
		return fmt.Errorf("its disk has %d bytes free and needs %d: %w", free, minFree, syscall.ENOSPC)
	}
	return nil
}

// undo removes the last n bytes, which a failed write has left.
func (f *file) undo(n int64) {
	if n == 0 {
		return
	}
	info, err := f.f.Stat()
	if err == nil {
		err = f.f.Truncate(max(0, info.Size()-n))
	}
	if f.torn = f.torn || err != nil; err == nil {
		f.size = max(0, info.Size()-n)
	}
}

// rotate renames the file, opens a new one and removes old ones.
func (f *file) rotate() error {
	f.close()
	if err := os.Rename(f.cfg.File, f.cfg.File+"."+time.Now().UTC().Format(stampFormat)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	return f.removeOld()
}

// removeOld removes all rotated files except the newest Keep.
func (f *file) removeOld() error {
	names, err := rotated(f.cfg.File)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names[:max(0, len(names)-f.cfg.Keep)] {
		errs = append(errs, os.Remove(name))
	}
	return errors.Join(errs...)
}

// rotated returns the paths of the rotated files of path, oldest first. It
// ignores files with other names, such as those of another program.
func rotated(path string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if _, parseErr := time.Parse(stampFormat, stamp); ok && parseErr == nil {
			names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.Sort(names)
	return names, err
}
