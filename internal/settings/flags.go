// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// ConfigFileFlag is the name of the flag that names the file of the settings.
const ConfigFileFlag = "config-file"

// AddFlags adds --config-file and a flag for each field of *s. The value of the
// field is the default.
func AddFlags(flags *pflag.FlagSet, s any) {
	flags.String(ConfigFileFlag, "", "HCL or JSON (.json) `file` with these settings, names with underscores")
	Each(s, func(f Field) {
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

// Load fills *s from the file, the environment and the flags: a later source
// overrides an earlier one. A list has commas in the environment, and one flag
// for each element. An empty environment variable counts as absent. Load returns
// all errors at once. It writes a warning to stderr if the environment overrides
// the file.
func Load(flags *pflag.FlagSet, stderr io.Writer, s any) error {
	var errs []error
	defaults := map[string]any{}
	Each(s, func(f Field) { defaults[f.Name] = f.Value.Interface() })
	path := FlagOrEnv(flags, ConfigFileFlag)
	if path != "" {
		errs = append(errs, Read(path, s))
	}
	Each(s, func(f Field) {
		if text := os.Getenv(EnvName(f.Name)); text != "" {
			before := f.Value.Interface() // the value of the file, or the default
			if err := setField(f.Value, text); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", EnvName(f.Name), err))
			}
			// Warn, because a shell may export an operator certificate for
			// commands and override the certificate of a server by accident.
			if !flags.Changed(f.Flag) && !reflect.DeepEqual(before, defaults[f.Name]) &&
				!reflect.DeepEqual(before, f.Value.Interface()) {
				fmt.Fprintf(stderr, "wanfed: environment variable %s overrides %s of %s\n",
					EnvName(f.Name), f.Name, path)
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
	return Join(errs...)
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

// FlagOrEnv returns the value of a flag. If the flag is not set, it returns the
// value of the environment variable, or else the default.
func FlagOrEnv(flags *pflag.FlagSet, flag string) string {
	f := flags.Lookup(flag)
	if env := os.Getenv(EnvName(flag)); env != "" && !f.Changed {
		return env
	}
	return f.Value.String()
}
