// SPDX-License-Identifier: MPL-2.0

package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Format is the value of --output.
type Format string

// The formats.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
)

var formats = []string{string(Table), string(Wide), string(JSON)}

// Set implements pflag.Value.
func (f *Format) Set(s string) error {
	if !slices.Contains(formats, s) {
		return errors.New("must be table, wide or json")
	}
	*f = Format(s)
	return nil
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "format" }

// AddFlag adds --output to a command. It returns a function that returns the
// Printer of the command, after the flags are parsed.
func AddFlag(c *cobra.Command) func() Printer {
	f := Table
	c.Flags().VarP(&f, "output", "o", "table (80 columns), wide (all columns) or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats,
		cobra.ShellCompDirectiveNoFileComp))
	return func() Printer { return Printer{c.OutOrStdout(), f} }
}

// Printer writes the result of a command in the requested format.
type Printer struct {
	W      io.Writer
	Format Format
}

// IsWide reports whether tables have all columns.
func (p Printer) IsWide() bool { return p.Format == Wide }

// Print writes v as JSON if the format is json. Otherwise it calls table.
func (p Printer) Print(v any, table func() error) error {
	if p.Format != JSON {
		return table()
	}
	return encode(p.W, v, "", "  ")
}

// JSONLine writes v as one line of JSON.
func JSONLine(w io.Writer, v any) error { return encode(w, v, "", "") }

// JSONList writes a list as JSON while its elements arrive. It returns the first
// error of the list.
func JSONList[T any](w io.Writer, list iter.Seq2[T, error]) error {
	separator, end := "[\n  ", "[]\n"
	for v, err := range list {
		if err != nil {
			return err
		}
		var b strings.Builder
		if err := encode(&b, v, "  ", "  "); err != nil {
			return err
		}
		if _, err := fmt.Fprint(w, separator, strings.TrimSuffix(b.String(), "\n")); err != nil {
			return err
		}
		separator, end = ",\n  ", "\n]\n"
	}
	_, err := io.WriteString(w, end)
	return err
}

func encode(w io.Writer, v any, prefix, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetIndent(prefix, indent)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// tableWidth is the maximum number of characters of a line, except in wide
// output.
const tableWidth = 80

// Table writes rows as aligned columns. The first row has the titles. Unless
// the output format is wide, the text of the last column is wrapped so that no
// line is longer than tableWidth.
func (p Printer) Table(rows [][]string) error {
	var b strings.Builder
	if err := WriteFields(&b, rows); err != nil {
		return err
	}
	titles, _, _ := strings.Cut(b.String(), "\n")
	last := utf8.RuneCountInString(strings.TrimSuffix(strings.TrimRight(titles, " "), rows[0][len(rows[0])-1]))
	for line := range strings.Lines(b.String()) {
		line = strings.TrimRight(line, " \n")
		if !p.IsWide() {
			// The lines of a wrapped text begin under the title of the last
			// column, or farther left if that leaves less than a quarter of
			// the line.
			line = wrapFrom(line, min(last, tableWidth*3/4), tableWidth)
		}
		if _, err := fmt.Fprintln(p.W, line); err != nil {
			return err
		}
	}
	return nil
}

// Wrap breaks a line at the width of the terminal, or at tableWidth if the
// output is not a terminal, unless the format is wide. All lines but the first
// are indented.
func (p Printer) Wrap(line string, indent int) string {
	if p.IsWide() {
		return line
	}
	return wrapFrom(line, indent, p.TextWidth())
}

// minWidth is the width of the narrowest terminal for which text is wrapped.
const minWidth = 40

// TextWidth returns the number of characters of a line of text: the width of the
// terminal, or 80 if the output is not a terminal.
func (p Printer) TextWidth() int {
	f, ok := p.W.(*os.File)
	if !ok {
		return tableWidth
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return tableWidth
	}
	return max(width, minWidth)
}

// wrapFrom breaks a line into lines of at most lineWidth characters, at spaces
// where possible. All lines but the first are indented.
func wrapFrom(line string, indent, lineWidth int) string {
	var b strings.Builder
	rest := []rune(line)
	for start := 0; ; start = indent {
		width := lineWidth - start
		if len(rest) <= width {
			return b.String() + string(rest)
		}
		end, next := width, width
		for i := width; i > indent-start; i-- {
			if rest[i] == ' ' {
				end, next = i, i+1
				break
			}
		}
		b.WriteString(strings.TrimRight(string(rest[:end]), " ") + "\n" + strings.Repeat(" ", indent))
		rest = rest[next:]
	}
}

// WriteFields writes aligned columns of any width.
func WriteFields(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Printable(cell)
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// Printable replaces the characters of s that could control a terminal or break
// a table.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Age formats a number of seconds, or "-" for nil.
func Age(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	s := max(*seconds, 0)
	if hours := int(s / 3600); hours >= 24 {
		return fmt.Sprintf("%dd%dh", hours/24, hours%24)
	}
	precision := time.Second
	if s < 10 {
		precision = 100 * time.Millisecond
	}
	return time.Duration(s * float64(time.Second)).Round(precision).String()
}

// Size formats a number of bytes.
func Size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB"} {
		if f /= 1000; f < 999.5 { // above, the next unit is shorter: 1.0 MB, not 999.9 kB
			break
		}
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// Timestamp formats a time, or "-" for the zero time.
func Timestamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// waitingDelay is the time after which a waiting command prints the reason.
const waitingDelay = time.Second

// Waiting prints line to w unless the caller calls stop within
// waitingDelay.
func Waiting(w io.Writer, line string) (stop func()) {
	printed := make(chan struct{})
	timer := time.AfterFunc(waitingDelay, func() {
		defer close(printed)
		fmt.Fprintln(w, line+" ...")
	})
	return func() {
		if !timer.Stop() {
			<-printed
		}
	}
}
