// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// result has the figures of one contender in one round.
type result struct {
	figures map[string]float64 // by row
	// stopped is the reason why the contender has not all figures: a phase took
	// longer than the limit. Empty: it has all.
	stopped string
}

// measurement is the run of one contender.
type measurement struct {
	load
	in      io.Writer
	replies chan reply // closed when the contender has ended
	fleet   *fleet
	figures map[string]float64

	started usage // after all clients have everything
	full    int64 // bytes of everything
	port    uint32
}

// measure measures the contender whose commands are written to in and whose
// replies are read from out. If a phase exceeds the limit of l, measure returns
// the figures of the previous phases. The contender may then still be busy. The
// caller must close out.
func measure(ctx context.Context, l load, in io.Writer, out io.Reader) (result, error) {
	m := &measurement{load: l, in: in, replies: make(chan reply, 1), figures: map[string]float64{}, port: startPort}
	go func() { // ends when the caller closes out
		defer close(m.replies)
		for dec := json.NewDecoder(out); ; {
			var r reply
			if dec.Decode(&r) != nil {
				return
			}
			m.replies <- r
		}
	}()
	first, err := m.reply(ctx)
	if err != nil {
		return result{}, err
	}
	m.fleet = newFleet(l, first.Address)
	defer m.fleet.close()
	for _, phase := range []struct {
		name string
		run  func(ctx, limited context.Context) error
	}{{"start", m.start}, {"changes", m.changes}, {"reconnect", m.reconnect}} {
		limited, stop := context.WithTimeout(ctx, l.limit)
		err := phase.run(ctx, limited)
		late := ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)
		stop()
		if late {
			return result{m.figures, fmt.Sprintf("%s not completed in %v: %v", phase.name, l.limit, err)}, nil
		}
		if err != nil {
			return result{}, err
		}
	}
	return result{figures: m.figures}, nil
}

func (m *measurement) reply(ctx context.Context) (reply, error) {
	select {
	case r, ok := <-m.replies:
		if !ok {
			return r, io.ErrUnexpectedEOF
		}
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, fmt.Errorf("no reply: %w", ctx.Err())
	}
}

// command sends a command and waits for the reply.
func (m *measurement) command(ctx context.Context, format string, args ...any) (usage, error) {
	if _, err := fmt.Fprintf(m.in, format+"\n", args...); err != nil {
		return usage{}, err
	}
	r, err := m.reply(ctx)
	return r.Usage, err
}

// settled returns the usage of a contender that has nothing to do.
func (m *measurement) settled(ctx context.Context) (usage, error) {
	select {
	case <-time.After(m.settle):
	case <-ctx.Done():
		return usage{}, ctx.Err()
	}
	return m.command(ctx, "usage")
}

// start connects all clients. Their streams end with ctx. limited limits the
// phase.
func (m *measurement) start(ctx, limited context.Context) error {
	base, err := m.command(limited, "usage")
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := m.command(limited, "proxies"); err != nil {
		return err
	}
	if err := m.fleet.connect(ctx, limited, "listeners"); err != nil {
		return err
	}
	m.figures["start/time"] = time.Since(begin).Seconds()
	m.full = m.fleet.bytes.Load()
	if m.started, err = m.settled(limited); err != nil {
		return err
	}
	m.figures["start/bytes"] = float64(m.full) / 1e6
	m.figures["start/cpu"] = (m.started.CPUBefore - base.CPUAfter).Seconds()
	m.figures["memory/proxy"] = (float64(m.started.Memory) - float64(base.Memory)) / float64(m.proxies) / 1024
	return nil
}

// changes measures changes. It ends early if the limit has passed and at least
// one change was measured. A single change has the limit for itself.
func (m *measurement) changes(ctx, limited context.Context) error {
	var bytes, firsts, lasts []float64
	for len(lasts) < m.load.changes && (len(lasts) == 0 || limited.Err() == nil) {
		m.port++
		before := m.fleet.bytes.Load()
		wait := m.fleet.expect("change")
		begin := time.Now()
		one, stop := context.WithTimeout(ctx, m.limit)
		_, err := m.command(one, "change %d", m.port)
		var first, last time.Time
		if err == nil {
			first, last, err = wait(one)
		}
		stop()
		if err != nil {
			return err
		}
		bytes = append(bytes, float64(m.fleet.bytes.Load()-before))
		firsts, lasts = append(firsts, ms(first.Sub(begin))), append(lasts, ms(last.Sub(begin)))
	}
	changed, err := m.settled(ctx)
	if err != nil {
		return err
	}
	m.figures["change/count"] = float64(len(lasts))
	m.figures["change/bytes"], m.figures["change/of full"] = median(bytes)/1e3, 100*median(bytes)/float64(m.full)
	m.figures["change/cpu"] = ms(changed.CPUBefore-m.started.CPUAfter) / float64(len(lasts))
	m.figures["change/first"], m.figures["change/last"] = median(firsts), median(lasts)
	return nil
}

// reconnect connects all clients again, after one change.
func (m *measurement) reconnect(ctx, limited context.Context) error {
	m.fleet.close()
	if _, err := m.command(limited, "change %d", m.port+1); err != nil {
		return err
	}
	before, err := m.settled(limited)
	if err != nil {
		return err
	}
	received, begin := m.fleet.bytes.Load(), time.Now()
	if err := m.fleet.connect(ctx, limited, "change"); err != nil {
		return err
	}
	m.figures["reconnect/last"] = ms(time.Since(begin))
	after, err := m.settled(limited)
	if err != nil {
		return err
	}
	m.figures["reconnect/bytes"] = float64(m.fleet.bytes.Load()-received) / 1e3
	m.figures["reconnect/cpu"] = ms(after.CPUBefore - before.CPUAfter)
	m.figures["rss"] = float64(after.RSS) / (1 << 20)
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
