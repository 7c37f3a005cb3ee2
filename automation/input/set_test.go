// SPDX-License-Identifier: MPL-2.0

package input

import "testing"

func TestUnite(t *testing.T) {
	for _, test := range []struct{ a, b, want string }{
		{`{}`, `{}`, `{}`},
		{`{"b":{"x":1}}`, `{"a":[2]}`, `{"a":[2],"b":{"x":1}}`},
		{`{"a":{"x":1},"b":1}`, `{"a":{"y":2}}`, `{"a":{"y":2},"b":1}`},
	} {
		if got, err := Unite([]byte(test.a), []byte(test.b)); string(got) != test.want || err != nil {
			t.Errorf("Unite(%s, %s) = %s, %v, want %s", test.a, test.b, got, err, test.want)
		}
	}
	if got, err := Unite([]byte(`[]`), []byte(`{}`)); err == nil {
		t.Errorf("Unite of a list = %s, nil, want an error", got)
	}
}
