// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestConn_Delay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		a, b := newConns(addrOf("10.0.0.1:1"), addrOf("10.0.0.2:1"), oneWay, nil)
		began := time.Now()
		for _, s := range []string{"one ", "two "} {
			if _, err := a.Write([]byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(oneWay / 2)
		if _, err := a.Write([]byte("three")); err != nil {
			t.Fatal(err)
		}
		a.Close()
		got, err := io.ReadAll(b)
		if took := time.Since(began); string(got) != "one two three" || err != nil || took != oneWay*3/2 {
			t.Errorf("ReadAll() = %q, %v after %v, want %q, nil after %v", got, err, took, "one two three", oneWay*3/2)
		}
		if _, err := a.Write([]byte("late")); err == nil {
			t.Error("Write() after Close() = nil, want an error")
		}
		b.Close()
	})
}

func TestConn_ReadDeadline(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		a, b := newConns(addrOf("10.0.0.1:1"), addrOf("10.0.0.2:1"), 0, nil)
		defer a.Close()
		defer b.Close()
		began := time.Now()
		b.SetReadDeadline(began.Add(time.Second))
		_, err := b.Read(make([]byte, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Read() = %v after %v, want %v after 1s", err, time.Since(began), os.ErrDeadlineExceeded)
		}
		b.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Minute, func() { b.Close() })
		if _, err := b.Read(make([]byte, 1)); err == nil || time.Since(began) != time.Minute+time.Second {
			t.Errorf("Read() until Close() = %v after %v, want an error after 1m1s", err, time.Since(began))
		}
	})
}

// TestHalf_Join checks that data on joined connections arrives once, in order
// and with the delays of both. No data arrives after the path is cut.
func TestHalf_Join(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var cut atomic.Bool
		client, near := newConns(addrOf("10.0.0.1:1"), addrOf("10.0.0.2:1"), oneWay, nil)
		far, server := newConns(addrOf("10.0.0.2:1"), addrOf("10.0.0.3:1"), oneWay, &cut)
		began := time.Now()
		if _, err := client.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(oneWay + time.Millisecond) // the data is buffered at the gateway
		if _, err := client.Write([]byte("b")); err != nil {
			t.Fatal(err)
		}
		near.in.join(far.out)
		far.in.join(near.out)
		got := make([]byte, 2)
		want := 3*oneWay + time.Millisecond
		if _, err := io.ReadFull(server, got); err != nil || string(got) != "ab" || time.Since(began) != want {
			t.Errorf("ReadFull() = %q, %v after %v, want %q, nil after %v", got, err, time.Since(began), "ab", want)
		}
		cut.Store(true)
		if _, err := client.Write([]byte("c")); err != nil {
			t.Fatal(err)
		}
		server.SetReadDeadline(time.Now().Add(time.Hour))
		if n, err := server.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read() over a lost path = %d, %v, want %v", n, err, os.ErrDeadlineExceeded)
		}
		client.Close()
		server.Close()
	})
}
