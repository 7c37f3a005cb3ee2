// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// briefOf says in numbers what the headers of an answer say, as far as another datacenter takes them over (relayed): it costs less than a
// map of strings. It returns nil if they say more, or less, than putBrief would.
func briefOf(h http.Header) *pb.Brief {
	b := &pb.Brief{KnownLeader: one(h, api.HeaderKnownLeader) == "true", Json: strings.HasPrefix(one(h, "Content-Type"), typeJSON)}
	if v := one(h, api.HeaderIndex); v != "" {
		index, err := strconv.ParseUint(v, 10, 64)
		if err != nil || index == 0 {
			return nil
		}
		b.Index = index
	}
	var err error
	b.LastContact, err = strconv.ParseUint(one(h, api.HeaderLastContact), 10, 64)
	if err != nil || one(h, api.HeaderKnownLeader) == "" || one(h, api.HeaderCause) != "" {
		return nil
	}
	return b
}

// one is h.Get of a key in canonical form.
func one(h http.Header, key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// putBrief sets the headers that b stands for, except the content type.
func putBrief(h http.Header, b *pb.Brief) {
	values := make([]string, 0, 3) // one allocation
	put := func(key, v string) {
		values = append(values, v)
		h[key] = values[len(values)-1 : len(values) : len(values)]
	}
	if b.GetIndex() > 0 {
		put(api.HeaderIndex, strconv.FormatUint(b.GetIndex(), 10))
	}
	put(api.HeaderKnownLeader, strconv.FormatBool(b.GetKnownLeader()))
	put(api.HeaderLastContact, strconv.FormatUint(b.GetLastContact(), 10))
}
