// SPDX-License-Identifier: MPL-2.0

package server

import (
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/tlsutil"
)

// knownEpoch returns the epoch that calls and responses carry.
func (c *components) knownEpoch() string { return c.manager.KnownEpoch().String() }

// called records a call of another server: the epoch of the primary that it
// has sent, and the contact with its datacenter.
func (c *components) called(epoch string, from tlsutil.Peer) {
	if from.DC != c.cfg.DC {
		c.manager.RecordContact()
	}
	c.learnEpoch(epoch, from.String())
}

// learnEpoch records the epoch of the primary that another server has sent.
func (c *components) learnEpoch(epoch, peer string) {
	e, err := replication.ParseEpoch(epoch)
	if err != nil {
		c.logger.Debug("cannot read the epoch of another server", "peer", peer, "err", err)
		return
	}
	c.manager.Learn(e, peer)
}
