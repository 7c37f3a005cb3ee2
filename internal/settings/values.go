// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/wanfed/wanfed/internal/rpctext"
)

// ParseLevel parses the setting log_level: debug, info, warn or error.
func ParseLevel(level string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return l, fmt.Errorf("log_level %q is not one of debug, info, warn, error", level)
	}
	return l, nil
}

// plainError removes the additions of gRPC from an attribute that is an error,
// or the text of an error.
func plainError(_ []string, a slog.Attr) slog.Attr {
	text := ""
	if err, ok := a.Value.Any().(error); ok && err != nil {
		text = err.Error()
	} else if a.Key == "err" {
		text = a.Value.String()
	}
	if plain := rpctext.Plain(text); plain != text {
		a.Value = slog.StringValue(plain)
	}
	return a
}

// PrintReady writes the line that reports readiness to w. In the format "json"
// of the log, the line is a log record in JSON, because many systems read
// stdout and stderr as one log.
func PrintReady(w io.Writer, format string, ready fmt.Stringer) {
	if format == "json" {
		slog.New(slog.NewJSONHandler(w, nil)).Info("ready", "listens", ready.String())
		return
	}
	fmt.Fprintln(w, ready)
}

// NewLogger returns a logger that writes records of at least level to w. format
// is the setting log_format: text or json.
func NewLogger(w io.Writer, level slog.Leveler, format string) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: plainError}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log_format %q is not one of text, json", format)
}

// CheckLog checks the settings log_level and log_format.
func CheckLog(level, format string) error {
	l, err := ParseLevel(level)
	if err != nil {
		return err
	}
	_, err = NewLogger(io.Discard, l, format)
	return err
}

// Removed replaces a secret.
const Removed = "(removed)"

var secretName = regexp.MustCompile(`token|secret|password|passphrase|key|encrypt$`)

// Shown is a setting as it may be shown to others.
type Shown struct{ Name, Value string }

// Show lists the settings of *s by name and value. It removes secrets, but not
// the paths of their files.
func Show(s any) (all []Shown) {
	Each(s, func(f Field) {
		value := fmt.Sprint(f.Value.Interface())
		if k := f.Value.Kind(); k == reflect.String || k == reflect.Slice {
			value = fmt.Sprintf("%q", f.Value.Interface())
		}
		if secretName.MatchString(f.Name) && !strings.HasSuffix(f.Name, "_file") {
			value = Removed
		}
		all = append(all, Shown{f.Name, value})
	})
	return all
}

// ParseNetwork parses an IP network (CIDR) or a single IP address.
func ParseNetwork(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is not a network; write, for example, 10.0.0.0/8, 2001:db8::/32 or one address", s)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%q has host bits; write %s for the network or %s for the address", s,
			p.Masked(), p.Addr())
	}
	return p, nil
}

// Networks parses a list of networks that CheckNetworks has accepted.
func Networks(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if p, err := ParseNetwork(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// CheckNetworks checks a list of networks, the value of the setting name.
func CheckNetworks(name string, list []string) error {
	var errs []error
	for _, s := range list {
		if _, err := ParseNetwork(s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return Join(errs...)
}

// CheckDir checks the path of a directory, the value of the setting name. An
// empty path or a missing directory is not an error.
func CheckDir(name, path string) error {
	if path == "" {
		return nil
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return fmt.Errorf("%s %s is a file, not a directory: name a directory, or move the file away", name,
			filepath.Clean(path))
	}
	return nil
}
