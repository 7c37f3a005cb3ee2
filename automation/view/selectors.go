// SPDX-License-Identifier: MPL-2.0

package view

import "iter"

// selectors has views by the names of objects that they select. Views with
// names are found by name. The other views must be compared with each new name
// once: the caller keeps the result of matching for each name.
type selectors struct {
	named    map[string]map[*view]struct{}
	patterns map[*view]struct{}
}

// addIf adds v to a set of views with patterns, if v has a pattern.
func addIf(set *map[*view]struct{}, v *view) {
	if len(v.query.Names) > 0 {
		return
	}
	if *set == nil {
		*set = map[*view]struct{}{}
	}
	(*set)[v] = struct{}{}
}

func (s *selectors) add(v *view) {
	addIf(&s.patterns, v)
	for _, name := range v.query.Names {
		if s.named == nil {
			s.named = map[string]map[*view]struct{}{}
		}
		if s.named[name] == nil {
			s.named[name] = map[*view]struct{}{}
		}
		s.named[name][v] = struct{}{}
	}
}

func (s *selectors) remove(v *view) {
	delete(s.patterns, v)
	for _, name := range v.query.Names {
		delete(s.named[name], v)
		if len(s.named[name]) == 0 {
			delete(s.named, name)
		}
	}
}

// matching returns the views with a pattern that matches name.
func (s *selectors) matching(name string) (out map[*view]struct{}) {
	for v := range s.patterns {
		if v.match(name) {
			addIf(&out, v)
		}
	}
	return out
}

// all returns the views that select name. patterns is the result of matching.
func (s *selectors) all(name string, patterns map[*view]struct{}) iter.Seq[*view] {
	return func(yield func(*view) bool) {
		for _, set := range []map[*view]struct{}{s.named[name], patterns} {
			for v := range set {
				if !yield(v) {
					return
				}
			}
		}
	}
}
