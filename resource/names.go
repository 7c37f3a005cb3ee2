// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
)

// DefaultTenancy is the partition, and the namespace, of a resource that does not say.
const DefaultTenancy = "default"

// MaxNameLen bounds a resource's name, in bytes.
const MaxNameLen = 253

const (
	nameRule = `must be 1 to 253 characters of a-z, 0-9, "-", ".", "_"`
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
	s := fmt.Sprintf("%s %q", TypeString(id.GetType()), id.GetName())
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

// checkPrefix is CheckName for the beginning of a name, or nothing of it.
func checkPrefix(prefix string) error {
	if prefix != "" && !isName(prefix) {
		return invalidField("name_prefix", prefix, nameRule+", or empty")
	}
	return nil
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

// checkTenancy returns an ErrInvalid unless t, filled in, is the default tenancy or, where wild, has Wildcard in its place.
func checkTenancy(t *pb.Tenancy, wild bool) error {
	filled := FillTenancy(t)
	for _, f := range []struct{ field, value string }{
		{"tenancy.partition", filled.Partition},
		{"tenancy.namespace", filled.Namespace},
	} {
		switch {
		case f.value == DefaultTenancy || wild && f.value == Wildcard:
		case wild:
			return invalidField(f.field, f.value, `must be "default", "*" or empty`)
		default:
			return invalidField(f.field, f.value, `must be "default" or empty`)
		}
	}
	return nil
}
