// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/task"
)

// output is what the output of the programs of a run contains.
type output struct {
	// complete means that Terraform has applied everything and stored the state.
	complete bool
	changes  driver.Changes // if complete
	errors   []string
	text     []byte // the end of the output as text
	isText   bool   // the last error is text, and further lines belong to it
}

// event is a line of Terraform's JSON output.
type event struct {
	Message    string `json:"@message"`
	Type       string `json:"type"`
	Diagnostic struct {
		Severity, Summary, Detail, Address string
	} `json:"diagnostic"`
	Changes struct {
		Add, Change, Remove int
		Operation           string
	} `json:"changes"`
}

// maxLine limits the length of a line in bytes. Longer lines are not
// interpreted.
const maxLine = 1 << 20

// completeLine is the last line of an apply of a Terraform without JSON output.
var completeLine = regexp.MustCompile(
	`^(?:Apply complete! Resources: (\d+) added, (\d+) changed, |Destroy complete! Resources: )(\d+) destroyed`)

// readOutput reads the output of a run from an offset on.
func readOutput(dir string, offset int64) output {
	var out output
	f, err := os.Open(filepath.Join(dir, process.LogName))
	if err != nil {
		return out
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err == nil {
		out.read(f)
	}
	return out
}

// read reads lines of JSON and of text.
func (o *output) read(r io.Reader) {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if line = append(line, part[:min(len(part), maxLine-len(line))]...); errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(line) > 0 {
			o.line(bytes.TrimRight(line, "\r\n"))
		}
		if line = line[:0]; err != nil {
			return
		}
	}
}

func (o *output) line(line []byte) {
	var e event
	if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &e) != nil || e.Message == "" {
		o.textLine(string(line))
		return
	}
	o.write(e.Message)
	o.isText = false
	switch d := e.Diagnostic; {
	case e.Type == "change_summary" && (e.Changes.Operation == "apply" || e.Changes.Operation == "destroy"):
		o.complete = true
		o.changes = driver.Changes{Add: e.Changes.Add, Change: e.Changes.Change, Destroy: e.Changes.Remove}
	case e.Type == "diagnostic":
		o.write(d.Detail)
		if d.Severity == "error" {
			o.fail(d.Summary, d.Detail, d.Address)
		}
	}
}

// textLine interprets a line of text. An error is a line "Error: SUMMARY", and
// the paragraphs after it.
func (o *output) textLine(line string) {
	o.write(line)
	summary, isError := strings.CutPrefix(line, "Error: ")
	m := completeLine.FindStringSubmatch(line)
	last := len(o.errors) - 1
	switch {
	case isError:
		o.fail(summary, "", "")
		o.isText = true
	case m != nil:
		o.complete = true
		number := func(s string) int { n, _ := strconv.Atoi(s); return n }
		o.changes = driver.Changes{Add: number(m[1]), Change: number(m[2]), Destroy: number(m[3])}
	case o.isText && line != "" && len(o.errors[last]) < maxError:
		o.errors[last] = oneLine(o.errors[last] + " " + line)
	}
}

// maxError limits the length of an error in bytes.
const maxError = 600

// fail adds an error.
func (o *output) fail(summary, detail, address string) {
	text := summary
	if detail = strings.TrimSpace(detail); detail != "" {
		text += ": " + detail
	}
	if text = oneLine(text); address != "" {
		text += " (" + oneLine(address) + ")"
	}
	o.errors = append(o.errors, text)
}

// oneLine replaces all space by single blanks, and limits the length.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxError)], "")
}

// write appends a line to the text, and limits the text.
func (o *output) write(line string) {
	if line == "" {
		return
	}
	o.text = append(append(o.text, strings.TrimRight(line, "\n")...), '\n')
	if len(o.text) > 4*task.MaxLog {
		o.text = append([]byte(nil), o.text[len(o.text)-2*task.MaxLog:]...)
	}
}

// err returns the first error, and the number of errors. what is the program
// that failed.
func (o *output) err(what string) error {
	text := process.LastLine(o.text)
	if len(o.errors) > 0 {
		text = o.errors[0]
	}
	if n := len(o.errors); n > 1 {
		text += fmt.Sprintf(" (first of %d errors)", n)
	}
	return fmt.Errorf("%s: %s", what, text)
}
