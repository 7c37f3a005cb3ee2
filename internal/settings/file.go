// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
)

// MaxFile is the maximum size of a file of settings, in bytes.
const MaxFile = 1 << 20

// Read decodes the file at path into *to, a struct with hcl tags.
func Read(path string, to any) error {
	src, err := ReadFile(path, MaxFile)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	f, err := Parse(path, src)
	if err != nil {
		return err
	}
	return Decode(f.Body, to)
}

// Parse parses the content of a file as HCL, or as the JSON form of HCL if the
// path ends in .json.
func Parse(path string, src []byte) (*hcl.File, error) {
	if err := CheckText(path, src); err != nil {
		return nil, err
	}
	parse := hclparse.NewParser().ParseHCL
	if filepath.Ext(path) == ".json" {
		parse = hclparse.NewParser().ParseJSON
	}
	f, diags := parse(src, path)
	for _, d := range diags {
		if d.Severity == hcl.DiagError { // further syntax errors follow from the first
			return nil, DiagError(hcl.Diagnostics{d})
		}
	}
	return f, nil
}

// CheckText returns an error if the content of the file at path is not text, or
// has more than 10,000 nested brackets.
func CheckText(path string, src []byte) error {
	if !utf8.Valid(src) || strings.ContainsRune(string(src), 0) {
		return fmt.Errorf("%s is not a text file", path)
	}
	if nesting(src) > maxNesting {
		return fmt.Errorf("%s is nested too deep; check that it is the right file", path)
	}
	return nil
}

// maxNesting limits the nesting depth of brackets. The HCL parser is recursive,
// and a stack overflow would end the process.
const maxNesting = 10_000

// nesting returns the nesting depth of brackets. It also counts brackets in
// strings and comments, so the result may be too high.
func nesting(src []byte) (deepest int) {
	depth := 0
	for _, b := range src {
		switch b {
		case '{', '[', '(':
			depth++
		case '}', ']', ')':
			depth--
		}
		deepest = max(deepest, depth)
	}
	return deepest
}

// Decode decodes a body into *to, a struct with hcl tags.
func Decode(body hcl.Body, to any) error { return DiagError(gohcl.DecodeBody(body, nil, to)) }

// DiagError converts the diagnostics of one file to an error. It uses only the
// first error at each position, because further errors follow from the first.
func DiagError(diags hcl.Diagnostics) error {
	var errs []error
	seen := map[hcl.Pos]bool{}
	for _, d := range diags {
		switch {
		case d.Severity != hcl.DiagError:
		case d.Subject == nil:
			errs = append(errs, fmt.Errorf("%s: %s", d.Summary, d.Detail))
		case !seen[d.Subject.Start]:
			seen[d.Subject.Start] = true
			errs = append(errs, fmt.Errorf("%s:%d,%d: %s: %s",
				d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column, d.Summary, d.Detail))
		}
	}
	return Join(errs...)
}

// Field is one setting: a field of a struct with an hcl tag.
type Field struct {
	Name  string // name of the attribute in a file
	Flag  string // name of the flag without --
	Help  string
	Live  bool // whether a running process applies a changed value
	Value reflect.Value
}

// Each calls f for each setting of *settings.
func Each(settings any, f func(Field)) {
	v := reflect.ValueOf(settings).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("hcl"), ",")
		if name == "" {
			continue
		}
		flag := tag.Get("flag")
		if flag == "" {
			flag = strings.ReplaceAll(name, "_", "-")
		}
		f(Field{Name: name, Flag: flag, Help: tag.Get("help"), Live: tag.Get("live") != "", Value: v.Field(i)})
	}
}

// Merge copies the live settings of *next to *now. Both are structs of one
// type. The result changed has the names of the live settings that differed.
// The result fixed has the names of other settings that differ, which need a
// new process.
func Merge(now, next any) (changed, fixed []string) {
	var fields []Field
	Each(next, func(f Field) { fields = append(fields, f) })
	Each(now, func(f Field) {
		to := fields[0].Value
		fields = fields[1:]
		switch {
		case reflect.DeepEqual(f.Value.Interface(), to.Interface()):
		case f.Live:
			f.Value.Set(to)
			changed = append(changed, f.Name)
		default:
			fixed = append(fixed, f.Name)
		}
	})
	return changed, fixed
}

// ReadFile reads the file at path, which may be a pipe. A file of more than
// limit bytes is an error. The limit protects against endless devices.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, path, limit)
}

// ReadPrivateFile returns the content of a regular file that only its owner can
// read, up to limit bytes.
func ReadPrivateFile(path string, limit int64) ([]byte, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() || runtime.GOOS != "windows" && mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %v: must be a file that only its owner can read: chmod 0600 %s", path, mode, path)
	}
	return ReadAll(f, path, limit)
}

// ReadAll reads r to its end. More than limit bytes are an error. name is the
// name of r in error messages.
func ReadAll(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes; check that it is the right file", name, limit)
	}
	return b, err
}

// OpenFile opens the file at path, which may be a pipe, for reading. The error
// has a remedy.
func OpenFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &openError{path + " does not exist; check the path", err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &openError{path + " is not readable for this user; change its owner or mode", err}
	case err != nil:
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, &openError{path + " is a directory; name a file", syscall.EISDIR}
	}
	return f, nil
}

// openError is an error with another text than its cause.
type openError struct {
	text  string
	cause error
}

func (e *openError) Error() string { return e.text }
func (e *openError) Unwrap() error { return e.cause }

// EnvName returns the environment variable of a setting or a flag.
func EnvName(name string) string {
	return "WANFED_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
