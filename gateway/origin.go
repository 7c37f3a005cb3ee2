// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/wanfed/wanfed/internal/proxyproto"
)

// origin is where a client connection comes from.
type origin struct {
	remote  netip.AddrPort // not valid if it has none
	proxied bool           // a PROXY header has to come, and will say it
	counted bool           // its side counts it by its source
}

// enter says whether the connection may come in, or why not. Of one that has to begin with a PROXY header, header decides.
func (o *origin) enter(s *Listener) (Reason, bool) {
	if o.proxied = s.sendsProxy(o.remote.Addr()); o.proxied {
		return 0, true
	}
	return o.admit(s)
}

func (o *origin) admit(s *Listener) (Reason, bool) {
	reason, ok := s.admit(o.remote.Addr())
	o.counted = ok
	return reason, ok
}

// header takes the PROXY header, if there has to be one, off what was received. It returns ErrNeedMore until that is complete. What
// its sender connects for itself, to see whether this gateway is well, may come in.
func (o *origin) header(s *Listener, t *trip, in []byte) (rest []byte, err error) {
	if !o.proxied {
		return in, nil
	}
	source, size, err := proxyproto.Parse(in)
	switch {
	case err == proxyproto.ErrNeedMore:
		return in, ErrNeedMore
	case err == proxyproto.ErrNoHeader:
		return in, &refusal{reason: ReasonProxyHeader, err: fmt.Errorf("%w but is %s", err, looksLike(in))}
	case err != nil:
		return in, &refusal{reason: ReasonProxyHeader, err: err}
	}
	o.proxied = false
	if source.IsValid() {
		o.remote = source
		t.from(source)
		if reason, ok := o.admit(s); !ok {
			return in, &refusal{reason: reason, err: errors.New("so the PROXY header says who it is")}
		}
	}
	return in[size:], nil
}

// leave ends the count.
func (o *origin) leave(s *Listener) {
	if o.counted {
		s.leave(o.remote.Addr())
		o.counted = false
	}
}
