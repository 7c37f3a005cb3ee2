// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// connector opens connections that get one answer and are closed: a number at a time, each followed by the next, or some
// each second.
type connector struct {
	*client
	closedLoop bool
	took       samples
	sent       int
	failed     int
	refused    int // of those that failed: nobody listened
	last       error
	flying     int
}

// begin opens one connection, which counts from began.
func (k *connector) begin(began time.Time) {
	k.sent++
	c, err := k.open(opAnswer, k)
	if err != nil {
		k.fault(err)
		return
	}
	k.flying++
	c.began = began
}

func (k *connector) fault(err error) {
	k.failed++
	if k.last = err; errors.Is(err, unix.ECONNREFUSED) {
		k.refused++
	}
}

func (k *connector) ready(c *rawConn, events uint32) {
	done, err := k.answered(c, events)
	switch {
	case err != nil:
		k.fault(err)
	case !done:
		return
	default:
		k.took = append(k.took, time.Since(c.began))
	}
	k.flying--
	k.drop(c)
	if k.closedLoop && k.failed < maxFaults {
		k.begin(time.Now())
	}
}

// maxFaults is after how many failures a connection is not followed by another.
const maxFaults = 1000

func (c *client) connect(ctx context.Context) (Figures, error) {
	k := &connector{client: c, closedLoop: true}
	for range c.spec.Conns {
		k.begin(time.Now())
	}
	f := Figures{}
	err := c.measure(ctx, func(sp span) { f.addConnect(sp, k.took) }, func() { k.took, k.failed = newSamples(), 0 })
	if err == nil {
		err = f.checkConnect(len(k.took), k.failed, k.last)
	}
	return f, err
}

func (f Figures) addConnect(sp span, took samples) {
	f.add(sp)
	f.addQuantiles(took)
	f[ConnPerS] = float64(len(took)) / sp.wall
	if n := len(took); n > 0 && sp.proxy > 0 {
		f[CPUPerConn] = sp.proxy * 1e6 / float64(n)
	}
}

func (f Figures) checkConnect(done, failed int, last error) error {
	f[Lost] = float64(failed)
	switch {
	case done == 0 && last == nil:
		return errors.New("no connection got an answer in time")
	case done == 0:
		return fmt.Errorf("no connection got an answer: %w", last)
	case failed*100 > done:
		return fmt.Errorf("%d connections failed, %d did not: %w", failed, done, last)
	}
	return nil
}
