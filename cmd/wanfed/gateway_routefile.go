// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/wanfed/wanfed/gateway"
)

// routeFile is a file of routes as it was read last. To read it again takes as long as much of it has changed, but for a
// comparison of its bytes. The zero value has not been read.
type routeFile struct {
	path   string
	src    []byte
	blocks []routeBlock // in the order of the file; none: it can only be read as a whole
	table  *gateway.Table
}

// routeBlock is where a route is in a file: whole lines, with nothing else in them but a comment at the end.
type routeBlock struct {
	start, end int
	match      string
}

// routeList is the file's form.
type routeList struct {
	Routes []struct {
		Match     string    `hcl:"match,label"`
		To        []string  `hcl:"to"`
		Ordered   bool      `hcl:"ordered,optional"`
		Protocols []string  `hcl:"protocols,optional"`
		Proxy     bool      `hcl:"proxy_protocol,optional"`
		At        hcl.Range `hcl:",def_range"`
	} `hcl:"route,block"`
}

// readRoutes reads a file of routes. Each fault names file, line and column.
func readRoutes(path string) (*gateway.Table, error) { return new(routeFile).read(path) }

// read reads the file at path, which may be another than last time. Each fault names file, line and column. After a fault f is as
// it was.
func (f *routeFile) read(path string) (*gateway.Table, error) {
	src, err := readBounded(path, maxRouteFile)
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	if path == f.path && f.table != nil {
		if bytes.Equal(src, f.src) {
			return f.table, nil
		}
		if next := f.change(src); next != nil {
			*f = *next
			return f.table, nil
		}
	}
	next := routeFile{path: path, src: src}
	if err := next.readAll(); err != nil {
		return nil, err
	}
	*f = next
	return f.table, nil
}

// readAll makes table and blocks of src.
func (f *routeFile) readAll() error {
	parsed, errs := parseHCLSource(f.path, f.src)
	if len(errs) > 0 {
		return faults(errs...)
	}
	var file routeList
	if err := faults(hclErrors(gohcl.DecodeBody(parsed.Body, nil, &file))...); err != nil {
		return err
	}
	if len(file.Routes) == 0 {
		return fmt.Errorf("%s has no route: write, for example, route \"*.server.dc2.wanfed\" { to = [\"198.51.100.2:8443\"] }", f.path)
	}
	routes, err := file.check()
	if err != nil {
		return err
	}
	if f.table, err = gateway.NewTable(routes); err != nil {
		return err
	}
	f.blocks = blocksOf(parsed.Body, f.src)
	return nil
}

// check returns the routes, or everything that is wrong with them.
func (b *routeList) check() ([]gateway.Route, error) {
	routes := make([]gateway.Route, 0, len(b.Routes))
	first := map[string]hcl.Range{}
	var errs []error
	for _, r := range b.Routes {
		route := gateway.Route{Match: r.Match, To: r.To, Ordered: r.Ordered, Protocols: r.Protocols, ProxyProtocol: r.Proxy}
		at := fmt.Sprintf("%s:%d,%d", r.At.Filename, r.At.Start.Line, r.At.Start.Column)
		for _, err := range listOf(faults(gateway.CheckRoute(route))) {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
		name := strings.ToLower(strings.TrimSuffix(r.Match, "."))
		if twin, ok := first[name]; ok {
			errs = append(errs, fmt.Errorf("%s: route %q is in line %d already", at, r.Match, twin.Start.Line))
			continue
		}
		first[name] = r.At
		routes = append(routes, route)
	}
	return routes, faults(errs...)
}

// blocksOf says where in src the routes of a body are, if each has lines of its own; else it returns nil.
func blocksOf(body hcl.Body, src []byte) []routeBlock {
	native, ok := body.(*hclsyntax.Body)
	if !ok {
		return nil // it is JSON
	}
	blocks := make([]routeBlock, 0, len(native.Blocks))
	for _, b := range native.Blocks {
		start, end := b.TypeRange.Start.Byte, b.CloseBraceRange.End.Byte
		line := bytes.LastIndexByte(src[:start], '\n') + 1
		rest, _, whole := bytes.Cut(src[end:], []byte("\n"))
		after := bytes.TrimSpace(rest)
		comment := bytes.HasPrefix(after, []byte("#")) || bytes.HasPrefix(after, []byte("//"))
		if !whole || len(bytes.TrimSpace(src[line:start])) > 0 || len(after) > 0 && !comment {
			return nil
		}
		blocks = append(blocks, routeBlock{line, end + len(rest) + 1, b.Labels[0]})
	}
	slices.SortFunc(blocks, func(a, b routeBlock) int { return a.start - b.start })
	return blocks
}

// change returns what f becomes when its file has src, or nil if only reading all of that tells. What comes before the first byte
// that differs, and what comes after the last one, means the same as before if what is between is a file of routes by itself.
func (f *routeFile) change(src []byte) *routeFile {
	if len(f.blocks) == 0 {
		return nil
	}
	before := commonPrefix(f.src, src)
	after := len(f.src) - commonSuffix(f.src[before:], src[before:])
	first := sort.Search(len(f.blocks), func(i int) bool { return f.blocks[i].end > before })
	last := sort.Search(len(f.blocks), func(i int) bool { return f.blocks[i].start > after })
	from, to, shift := 0, len(src), len(src)-len(f.src)
	if first > 0 {
		from = f.blocks[first-1].end
	}
	if last < len(f.blocks) {
		to = f.blocks[last].start + shift
	}
	if checkHCL(f.path, src[from:to]) != nil {
		return nil
	}
	parsed, diags := hclsyntax.ParseConfig(src[from:to], f.path, hcl.InitialPos)
	if diags.HasErrors() {
		return nil
	}
	var file routeList
	if gohcl.DecodeBody(parsed.Body, nil, &file).HasErrors() {
		return nil
	}
	routes, err := file.check()
	if err != nil {
		return nil
	}
	now := blocksOf(parsed.Body, src[from:to])
	if len(now) != len(routes) {
		return nil
	}
	var gone []string
	for _, b := range f.blocks[first:last] {
		gone = append(gone, b.match)
	}
	table, err := f.table.Change(gone, routes)
	if err != nil || table.Len() == 0 {
		return nil
	}
	blocks := slices.Concat(f.blocks[:first], now, f.blocks[last:])
	for i := range now {
		blocks[first+i].start += from
		blocks[first+i].end += from
	}
	for i := first + len(now); i < len(blocks); i++ {
		blocks[i].start += shift
		blocks[i].end += shift
	}
	return &routeFile{path: f.path, src: src, blocks: blocks, table: table}
}

// compared is how many bytes are compared at once.
const compared = 4 << 10

func commonPrefix(a, b []byte) int {
	n, most := 0, min(len(a), len(b))
	for n+compared <= most && bytes.Equal(a[n:n+compared], b[n:n+compared]) {
		n += compared
	}
	for n < most && a[n] == b[n] {
		n++
	}
	return n
}

func commonSuffix(a, b []byte) int {
	n, most := 0, min(len(a), len(b))
	for n+compared <= most && bytes.Equal(a[len(a)-n-compared:len(a)-n], b[len(b)-n-compared:len(b)-n]) {
		n += compared
	}
	for n < most && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}
