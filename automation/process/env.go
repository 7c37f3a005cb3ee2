// SPDX-License-Identifier: MPL-2.0

package process

import (
	"os"
	"slices"
	"strings"
)

// inherited has the environment variables of the daemon that every program
// receives. A name that ends in "_" is a prefix.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

// Environ returns an environment: the inherited variables, those that also
// matches, and the variables of extra. A later map overrides an earlier one.
func Environ(also func(name string) bool, extra ...map[string]string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		matches := func(n string) bool { return n == name || strings.HasSuffix(n, "_") && strings.HasPrefix(name, n) }
		if slices.ContainsFunc(inherited, matches) || also != nil && also(name) {
			env = append(env, v)
		}
	}
	for _, m := range extra {
		for name, value := range m {
			env = append(env, name+"="+value)
		}
	}
	return env // os/exec uses the last value of a name
}
