// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/settings"
)

// The settings of a command are the fields of one struct (package
// internal/settings). The field with the tag hcl:"data_dir,optional" is the
// attribute data_dir of the file that --config-file names, the environment
// variable WANFED_DATA_DIR and the flag --data-dir. A later source overrides an
// earlier source. The initial value of the field is the default.
//
// Fields are string, int, bool or []string. A list has commas in the
// environment, and one flag for each element. An empty environment variable
// counts as absent.

const configFileFlag = "config-file"

// addSettings adds --config-file and a flag for each field of *s.
func addSettings(cmd *cobra.Command, s any) {
	flags := cmd.Flags()
	flags.String(configFileFlag, "", "HCL or JSON (.json) `file` with these settings, names with underscores")
	settings.Each(s, func(f settings.Field) {
		switch p := f.Value.Addr().Interface().(type) {
		case *string:
			flags.String(f.Flag, *p, f.Help)
		case *int:
			flags.Int(f.Flag, *p, f.Help)
		case *bool:
			flags.Bool(f.Flag, *p, f.Help)
		case *[]string:
			flags.StringSlice(f.Flag, *p, f.Help)
		}
	})
}

// loadSettings fills *s from the file, the environment and the flags of cmd. It
// returns all errors at once, as a usage error.
func loadSettings(cmd *cobra.Command, s any) error {
	var errs []error
	defaults := map[string]any{}
	settings.Each(s, func(f settings.Field) { defaults[f.Name] = f.Value.Interface() })
	path := flagOrEnv(cmd, configFileFlag)
	if path != "" {
		errs = append(errs, settings.Read(path, s))
	}
	flags := cmd.Flags()
	settings.Each(s, func(f settings.Field) {
		if text := os.Getenv(settings.EnvName(f.Name)); text != "" {
			before := f.Value.Interface() // the value of the file, or the default
			if err := setField(f.Value, text); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", settings.EnvName(f.Name), err))
			}
			// Warn, because a shell may export an operator certificate for
			// commands and override the certificate of a server by accident.
			if !flags.Changed(f.Flag) && !reflect.DeepEqual(before, defaults[f.Name]) &&
				!reflect.DeepEqual(before, f.Value.Interface()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "wanfed: environment variable %s overrides %s of %s\n",
					settings.EnvName(f.Name), f.Name, path)
			}
		}
		if !flags.Changed(f.Flag) {
			return
		}
		value := flags.Lookup(f.Flag).Value
		if list, ok := value.(interface{ GetSlice() []string }); ok {
			f.Value.Set(reflect.ValueOf(list.GetSlice()))
		} else {
			_ = setField(f.Value, value.String()) // the flag has a valid value
		}
	})
	if err := settings.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// setField sets a field to the value of an environment variable.
func setField(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = text
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		*p = b
	case *[]string:
		*p = nil
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
	}
	return nil
}

// flagOrEnv returns the value of a flag. If the flag is not set, it returns the
// value of the environment variable, or else the default.
func flagOrEnv(cmd *cobra.Command, flag string) string {
	f := cmd.Flag(flag)
	if env := os.Getenv(settings.EnvName(flag)); env != "" && !f.Changed {
		return env
	}
	return f.Value.String()
}
