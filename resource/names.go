// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wanfed/wanfed/api/pb"
)

// DefaultTenancy is the partition, and the namespace, of a resource that does not say.
const DefaultTenancy = "default"

// MaxNameLen bounds a resource's name, in bytes, and MaxUTF8NameLen one of a type whose rule is CheckUTF8Name.
const (
	MaxNameLen     = 253
	MaxUTF8NameLen = 512
)

const (
	nameRule = `must be 1 to 253 characters of a-z, 0-9, "-", ".", "_"`
	freeRule = `must be 1 to 512 bytes of UTF-8 without NUL`
	wordRule = `must be 1 to 63 characters of a-z, 0-9, "-", beginning with a letter`
	kindRule = `must be 1 to 63 letters and digits, beginning with an upper-case letter`
)

// TypeString gives group/version/Kind, as logs, errors and commands show a type.
func TypeString(t *pb.Type) string {
	return t.GetGroup() + "/" + t.GetGroupVersion() + "/" + t.GetKind()
}

// SameType says whether a and b name the same type.
func SameType(a, b *pb.Type) bool {
	return a.GetGroup() == b.GetGroup() && a.GetGroupVersion() == b.GetGroupVersion() && a.GetKind() == b.GetKind()
}

// IDString gives type and name, and the tenancy if it is not the default one, as errors show a resource.
func IDString(id *pb.ID) string {
	s := TypeString(id.GetType()) + " " + quote(id.GetName())
	if t := FillTenancy(id.GetTenancy()); t.Partition != DefaultTenancy || t.Namespace != DefaultTenancy {
		s += fmt.Sprintf(" in %s/%s", t.Partition, t.Namespace)
	}
	return s
}

// FillTenancy returns t with the default in place of what it leaves out, as a new message if it leaves out anything.
func FillTenancy(t *pb.Tenancy) *pb.Tenancy {
	if t.GetPartition() != "" && t.GetNamespace() != "" {
		return t
	}
	filled := &pb.Tenancy{Partition: t.GetPartition(), Namespace: t.GetNamespace()}
	if filled.Partition == "" {
		filled.Partition = DefaultTenancy
	}
	if filled.Namespace == "" {
		filled.Namespace = DefaultTenancy
	}
	return filled
}

// CheckName returns an ErrInvalid unless name can be the name of a resource.
func CheckName(name string) error {
	if !isName(name) {
		return invalidField("name", name, nameRule)
	}
	return nil
}

// CheckUTF8Name is a Registration's CheckName for names that others choose, such as keys: any UTF-8 of 1 to MaxUTF8NameLen
// bytes without NUL, "/" and "*" too.
func CheckUTF8Name(name string) error {
	if name == "" || !isFree(name) {
		return invalidField("name", name, freeRule)
	}
	return nil
}

// checkName says whether name can be the name of a resource of the type.
func (reg *Registration) checkName(name string) error {
	if reg.CheckName != nil {
		return reg.CheckName(name)
	}
	return CheckName(name)
}

// checkPrefix is checkName for the beginning of a name, or nothing of it. Of a type with a rule of its own it asks no more
// than what the store needs.
func (reg *Registration) checkPrefix(prefix string) error {
	switch {
	case prefix == "", reg.CheckName == nil && isName(prefix), reg.CheckName != nil && isFree(prefix):
		return nil
	case reg.CheckName != nil:
		return invalidField("name_prefix", prefix, freeRule+", or empty")
	}
	return invalidField("name_prefix", prefix, nameRule+", or empty")
}

func isFree(s string) bool {
	return len(s) <= MaxUTF8NameLen && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// quote shows what somebody sent in an error: in one line that a terminal takes, and not all of what is too long.
func quote(s string) string {
	if len(s) > MaxUTF8NameLen {
		return fmt.Sprintf("%q… (%d bytes)", s[:MaxUTF8NameLen], len(s))
	}
	return strconv.Quote(s)
}

func isName(s string) bool {
	if s == "" || len(s) > MaxNameLen {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return !isLower(r) && !isDigit(r) && r != '-' && r != '.' && r != '_'
	}) < 0
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

func isWord(s string) bool {
	if s == "" || len(s) > 63 || !isLower(rune(s[0])) {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return !isLower(r) && !isDigit(r) && r != '-' }) < 0
}

func isKind(s string) bool {
	if s == "" || len(s) > 63 || !isUpper(rune(s[0])) {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return !isLower(r) && !isUpper(r) && !isDigit(r) }) < 0
}

func isLower(r rune) bool { return 'a' <= r && r <= 'z' }
func isUpper(r rune) bool { return 'A' <= r && r <= 'Z' }
func isDigit(r rune) bool { return '0' <= r && r <= '9' }

// labelRule is a partition's and a namespace's.
const labelRule = `must be 1 to 63 characters of a-z, 0-9, "-", beginning with a letter or digit`

// scoped returns t as resources of that scope have it: with the default in place of what is left out, and empty outside the
// scope, where "default" is taken for nothing. It is an ErrInvalid otherwise. Where wild, Wildcard may stand for a part.
func scoped(scope Scope, t *pb.Tenancy, wild bool) (*pb.Tenancy, error) {
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

func scopedPart(part, value string, scope Scope, has, wild bool) (string, error) {
	rule := labelRule
	if wild {
		rule += `, or "*"`
	}
	switch {
	case !has && (value == "" || value == DefaultTenancy || wild && value == Wildcard):
		return "", nil
	case !has:
		return "", invalidField("tenancy."+part, value, fmt.Sprintf("must be empty: resources of this type have the scope %s", scope))
	case value == "":
		return DefaultTenancy, nil
	case wild && value == Wildcard, isLabel(value):
		return value, nil
	}
	return "", invalidField("tenancy."+part, value, rule)
}

func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return !isLower(r) && !isDigit(r) && r != '-' }) < 0
}
