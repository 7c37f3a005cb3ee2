// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wanfed/wanfed/api/pb"
)

const (
	// DefaultTenancy is the default partition and the default namespace.
	DefaultTenancy = "default"
	// MaxNameLen is the maximum length of a name for CheckName, in bytes.
	MaxNameLen = 253
	// MaxUTF8NameLen is the maximum length for CheckUTF8Name, in bytes.
	MaxUTF8NameLen = 512
)

// Rules of names, for errors.
const (
	nameRule  = `must be 1 to 253 characters of a-z, 0-9, "-", ".", "_"`
	utf8Rule  = `must be 1 to 512 bytes of UTF-8 without NUL`
	wordRule  = `must be 1 to 63 characters of a-z, 0-9, "-", beginning with a letter`
	kindRule  = `must be 1 to 63 letters and digits, beginning with an upper-case letter`
	labelRule = `must be 1 to 63 characters of a-z, 0-9, "-", beginning with a letter or digit`
)

// TypeString returns t as group/version/Kind, for logs, errors and commands.
func TypeString(t *pb.Type) string {
	return t.GetGroup() + "/" + t.GetGroupVersion() + "/" + t.GetKind()
}

// SameType reports whether a and b are the same type.
func SameType(a, b *pb.Type) bool {
	return a.GetGroup() == b.GetGroup() && a.GetGroupVersion() == b.GetGroupVersion() && a.GetKind() == b.GetKind()
}

// IDString returns type and name of an id, and the tenancy if it is not the
// default tenancy, for logs and errors.
func IDString(id *pb.ID) string {
	s := TypeString(id.GetType()) + " " + quote(id.GetName())
	if t := FillTenancy(id.GetTenancy()); t.Partition != DefaultTenancy || t.Namespace != DefaultTenancy {
		s += fmt.Sprintf(" in %s/%s", t.Partition, t.Namespace)
	}
	return s
}

// FillTenancy returns t with the default for each empty part. It returns t
// itself if no part is empty, and a new message otherwise.
func FillTenancy(t *pb.Tenancy) *pb.Tenancy {
	if t.GetPartition() != "" && t.GetNamespace() != "" {
		return t
	}
	return &pb.Tenancy{
		Partition: cmp.Or(t.GetPartition(), DefaultTenancy), Namespace: cmp.Or(t.GetNamespace(), DefaultTenancy),
	}
}

// CheckName returns an ErrInvalid unless name is a valid name of a resource.
func CheckName(name string) error {
	if !isName(name) {
		return invalidField("name", name, nameRule)
	}
	return nil
}

// CheckUTF8Name is a Registration.CheckName for names that users choose, such
// as keys. CheckUTF8Name allows any UTF-8 of 1 to MaxUTF8NameLen bytes without
// NUL, including "/" and "*".
func CheckUTF8Name(name string) error {
	if !isUTF8Name(name) {
		return invalidField("name", name, utf8Rule)
	}
	return nil
}

// checkName checks the name of a resource of the type.
func (reg *Registration) checkName(name string) error {
	if reg.CheckName != nil {
		return reg.CheckName(name)
	}
	return CheckName(name)
}

// checkPrefix checks a prefix of names of the type. The prefix may be empty. If
// the type has its own CheckName, any UTF-8 is allowed.
func (reg *Registration) checkPrefix(prefix string) error {
	valid, rule := isName, nameRule
	if reg.CheckName != nil {
		valid, rule = isUTF8Name, utf8Rule
	}
	if prefix != "" && !valid(prefix) {
		return invalidField("name_prefix", prefix, rule+", or empty")
	}
	return nil
}

func isUTF8Name(s string) bool {
	return s != "" && len(s) <= MaxUTF8NameLen && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// quote formats a value for an error: on one line, without control characters,
// and shortened if it is too long.
func quote(s string) string {
	if len(s) > MaxUTF8NameLen {
		return fmt.Sprintf("%q… (%d bytes)", s[:MaxUTF8NameLen], len(s))
	}
	return strconv.Quote(s)
}

// checkType returns an ErrInvalid unless t can be registered.
func checkType(t *pb.Type) error {
	switch {
	case !isWord(t.GetGroup()):
		return invalidField("type.group", t.GetGroup(), wordRule)
	case !isWord(t.GetGroupVersion()):
		return invalidField("type.group_version", t.GetGroupVersion(), wordRule)
	case !isKind(t.GetKind()):
		return invalidField("type.kind", t.GetKind(), kindRule)
	}
	return nil
}

const (
	lower = "abcdefghijklmnopqrstuvwxyz"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digit = "0123456789"
)

// consistsOf reports whether s has 1 to limit bytes, all of them in set.
func consistsOf(s string, limit int, set string) bool {
	return s != "" && len(s) <= limit && strings.Trim(s, set) == ""
}

func isName(s string) bool  { return consistsOf(s, MaxNameLen, lower+digit+"-._") }
func isLabel(s string) bool { return consistsOf(s, 63, lower+digit+"-") && s[0] != '-' }
func isWord(s string) bool  { return isLabel(s) && strings.IndexByte(lower, s[0]) >= 0 }
func isKind(s string) bool {
	return consistsOf(s, 63, lower+upper+digit) && strings.IndexByte(upper, s[0]) >= 0
}

// scopedTenancy returns the tenancy of a resource of a scope for the tenancy t
// of a request. An empty part inside the scope becomes "default". A part
// outside the scope becomes empty, and must be empty or "default" in t. If
// wild, a part of t may be Wildcard. Other values are an ErrInvalid.
func scopedTenancy(scope Scope, t *pb.Tenancy, wild bool) (*pb.Tenancy, error) {
	partition, err := scopedPart("partition", t.GetPartition(), scope, scope <= ScopePartition, wild)
	if err != nil {
		return nil, err
	}
	namespace, err := scopedPart("namespace", t.GetNamespace(), scope, scope == ScopeNamespace, wild)
	if err != nil {
		return nil, err
	}
	return &pb.Tenancy{Partition: partition, Namespace: namespace}, nil
}

func scopedPart(part, value string, scope Scope, inScope, wild bool) (string, error) {
	rule := labelRule
	if wild {
		rule += `, or "*"`
	}
	switch {
	case !inScope && (value == "" || value == DefaultTenancy || wild && value == Wildcard):
		return "", nil
	case !inScope:
		return "", invalidField("tenancy."+part, value,
			fmt.Sprintf("must be empty: resources of this type have the scope %s", scope))
	case value == "":
		return DefaultTenancy, nil
	case wild && value == Wildcard, isLabel(value):
		return value, nil
	}
	return "", invalidField("tenancy."+part, value, rule)
}
