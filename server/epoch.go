// SPDX-License-Identifier: MPL-2.0

package server

import (
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/tlsutil"
)

// knownEpoch returns the epoch that calls and responses carry.
func (c *components) knownEpoch() string { return c.manager.KnownEpoch().String() }

// called records a call of another server: the epoch of the primary that it
// has sent, and the contact with its datacenter. A datacenter that reports a newer
// primary does not extend the lease of this one.
func (c *components) called(epoch string, from tlsutil.Peer) {
	if newer := c.reportEpoch(epoch, from.DC); !newer && from.DC != c.cfg.DC {
		c.manager.RecordContact()
	}
}

// reportEpoch records the epoch of the primary that a server of datacenter from
// has sent. It reports whether the epoch is newer than the known one.
func (c *components) reportEpoch(epoch, from string) (newer bool) {
	e, err := replication.ParseEpoch(epoch)
	if err != nil {
		c.logger.Debug("cannot read the epoch of another server", "peer_dc", from, "err", err)
		return false
	}
	return c.manager.Report(e, from)
}
