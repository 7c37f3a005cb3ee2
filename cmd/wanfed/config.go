// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/spf13/cobra"
)

// Settings of a command are the fields of one struct. A field with the tag
//
//	DataDir string `hcl:"data_dir,optional" help:"folder for ..."`
//
// is the attribute data_dir of the file named by --config-file, the environment variable WANFED_DATA_DIR and the flag
// --data-dir; a later one of the three beats an earlier one, and what the field held before is the default. Fields are
// string, int, bool or []string (a list in the file; commas in the environment; a flag given several times, or commas).
// An empty environment variable counts as absent. A tag flag:"x" names the flag --x, where it is not the attribute's name.

const configFileFlag = "config-file"

// addSettings gives cmd --config-file and a flag for each field of *settings; the values there now are the defaults.
func addSettings(cmd *cobra.Command, settings any) {
	flags := cmd.Flags()
	flags.String(configFileFlag, "", "HCL (or .json) `file` with these settings, written with underscores")
	eachSetting(settings, func(_, flag, help string, v reflect.Value) {
		switch p := v.Addr().Interface().(type) {
		case *string:
			flags.String(flag, *p, help)
		case *int:
			flags.Int(flag, *p, help)
		case *bool:
			flags.Bool(flag, *p, help)
		case *[]string:
			flags.StringSlice(flag, *p, help)
		}
	})
}

// loadSettings fills *settings from the file, the environment and the flags of cmd, weakest first. It returns all
// faults at once, as a usage error.
func loadSettings(cmd *cobra.Command, settings any) error {
	var errs []error
	path := os.Getenv(envName(configFileFlag))
	if f := cmd.Flag(configFileFlag); f.Changed {
		path = f.Value.String()
	}
	defaults := map[string]any{}
	eachSetting(settings, func(name, _, _ string, v reflect.Value) { defaults[name] = v.Interface() })
	if path != "" {
		errs = append(errs, readSettings(path, settings))
	}
	flags := cmd.Flags()
	eachSetting(settings, func(name, flag, _ string, v reflect.Value) {
		if s := os.Getenv(envName(name)); s != "" {
			read := v.Interface()
			err := setField(v, s)
			// Who works in the shell in which commands have an operator's certificate by it would not think of it.
			if is := v.Interface(); !flags.Changed(flag) && !reflect.DeepEqual(read, defaults[name]) && !reflect.DeepEqual(read, is) {
				fmt.Fprintf(cmd.ErrOrStderr(), "wanfed: %s in the environment beats %s of %s\n", envName(name), name, path)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", envName(name), err))
			}
		}
		if !flags.Changed(flag) {
			return
		}
		switch p := v.Addr().Interface().(type) {
		case *string:
			*p, _ = flags.GetString(flag)
		case *int:
			*p, _ = flags.GetInt(flag)
		case *bool:
			*p, _ = flags.GetBool(flag)
		case *[]string:
			*p, _ = flags.GetStringSlice(flag)
		}
	})
	if err := faults(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// readSettings fills *settings from one file. Each fault names file, line and column.
func readSettings(path string, settings any) error {
	f, errs := parseHCL(path)
	if f != nil {
		errs = append(errs, hclErrors(gohcl.DecodeBody(f.Body, nil, settings))...)
	}
	return faults(errs...)
}

// parseHCL reads a file as HCL, or as its JSON form when the name ends so. The file is nil if it cannot be decoded at all.
func parseHCL(path string) (*hcl.File, []error) {
	src, err := readBounded(path, maxSettings)
	if err != nil {
		return nil, []error{fmt.Errorf("read settings: %w", err)}
	}
	return parseHCLSource(path, src)
}

// parseHCLSource is parseHCL for a file that was read already.
func parseHCLSource(path string, src []byte) (*hcl.File, []error) {
	for _, check := range []func(string, []byte) error{checkText, checkLong, checkHCL} {
		if err := check(path, src); err != nil {
			return nil, []error{err}
		}
	}
	parse := hclparse.NewParser().ParseHCL
	if filepath.Ext(path) == ".json" {
		parse = hclparse.NewParser().ParseJSON
	}
	f, diags := parse(src, path)
	if diags.HasErrors() {
		return nil, hclErrors(diags)
	}
	return f, nil
}

// checkText refuses what is no text, before a parser finds a fault in each of its bytes.
func checkText(path string, src []byte) error {
	if bytes.IndexByte(src, 0) >= 0 || !utf8.Valid(src) {
		return fmt.Errorf("%s is no text file", path)
	}
	return nil
}

// hclErrors gives one error for each place: what HCL says of it next only follows from the first.
func hclErrors(diags hcl.Diagnostics) []error {
	var errs []error
	told := map[hcl.Pos]bool{} // all are of one file
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		if d.Subject == nil {
			errs = append(errs, fmt.Errorf("%s: %s", d.Summary, d.Detail))
			continue
		}
		if told[d.Subject.Start] {
			continue
		}
		told[d.Subject.Start] = true
		errs = append(errs, fmt.Errorf("%s:%d,%d: %s: %s",
			d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column, d.Summary, d.Detail))
	}
	return errs
}

// eachSetting calls f for each field of *settings that has an hcl name.
func eachSetting(settings any, f func(name, flag, help string, v reflect.Value)) {
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
		f(name, flag, tag.Get("help"), v.Field(i))
	}
}

func setField(v reflect.Value, s string) error {
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = s
	case *int:
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is not true or false", s)
		}
		*p = b
	case *[]string:
		*p = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
	}
	return nil
}

func envName(name string) string {
	return "WANFED_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// faults joins errors so that people can read them: one as it is, several as a list. Without any it is nil.
func faults(errs ...error) error {
	var all faultList
	for _, err := range errs {
		all = all.add(err)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type faultList []error

// add appends err, or, when err is only a list of errors, each of them.
func (l faultList) add(err error) faultList {
	if err == nil {
		return l
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		inner := list.Unwrap()
		_, ours := err.(faultList)
		if ours || err.Error() == errors.Join(inner...).Error() {
			for _, e := range inner {
				l = l.add(e)
			}
			return l
		}
	}
	return append(l, err)
}

func (l faultList) Unwrap() []error { return l }

// maxFaults are told of a list: who has more has given the wrong file, and a log line should have an end.
const maxFaults = 50

func (l faultList) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d faults:", len(l))
	for i, err := range l {
		if i == maxFaults {
			fmt.Fprintf(&b, "\n  - and %d more", len(l)-i)
			break
		}
		b.WriteString("\n  - " + err.Error())
	}
	return b.String()
}
