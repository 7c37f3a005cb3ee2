// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

// maxKeyValue is the maximum size of the value of a key, in bytes.
const maxKeyValue = 512 << 10

func newKV() *cobra.Command {
	c := newGroup("kv", "Read and write keys", newKVGet(), newKVPut(), newKVDelete(), newKVList(), newKVWatch())
	c.Long = `Read and write keys of the key-value store of a datacenter.

Every server serves reads. Writes need HTTPS and a certificate whose policies
permit them, such as that of an operator.`
	c.Example = `  wanfed kv put app/mode blue
  wanfed kv get app/mode
  wanfed kv list app/ --datacenter dc2`
	return c
}

func newKVGet() *cobra.Command {
	c := addReadFlags(&cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key, exactly as it is stored. With --output wide the metadata
of the key are printed before the value, and with --output json the value is
base64. The exit code is 1 if the key does not exist.`,
		Example: `  wanfed kv get app/mode
  wanfed kv get app/cert --datacenter dc2 >cert.pem
  wanfed kv get app/mode --output json | jq -r .ModifyIndex`,
		Args: exactArgs("KEY"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		k, _, err := cl.ReadKey(cmd.Context(), args[0], cl.opts)
		if err != nil {
			return refusalText(err)
		}
		if k == nil {
			return fmt.Errorf("key %q does not exist; see: wanfed kv list", args[0])
		}
		return out.Print(k, func() error { return printKey(out, k) })
	})
	c.ValidArgsFunction = completeArgs(completeKeys)
	return c
}

func printKey(out output.Printer, k *api.Key) error {
	if out.IsWide() {
		rows := [][]string{
			{"Key:", k.Key}, {"Modify index:", strconv.FormatUint(k.ModifyIndex, 10)},
			{"Lock index:", strconv.FormatUint(k.LockIndex, 10)}, {"Session:", cmp.Or(k.Session, "-")},
			{"Flags:", strconv.FormatUint(k.Flags, 10)}, {"Size:", output.Size(int64(len(k.Value)))},
		}
		if err := output.WriteFields(out.W, rows); err != nil {
			return err
		}
		fmt.Fprintln(out.W)
	}
	_, err := out.W.Write(k.Value)
	if err == nil && !bytes.HasSuffix(k.Value, []byte("\n")) && isTerminal(out.W) {
		_, err = fmt.Fprintln(out.W)
	}
	return err
}

// keyFlags are the flags of a write.
type keyFlags struct {
	*cobra.Command
	cas string
}

func (f *keyFlags) add(condition string) {
	f.Flags().StringVar(&f.cas, "cas", "", "only if the modify `index` of the key is this"+condition)
}

// index returns the value of --cas, or nil.
func (f *keyFlags) index() (*uint64, error) {
	if f.cas == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(f.cas, 10, 64)
	if err != nil {
		return nil, usagef("--cas %q: must be the ModifyIndex that kv get --output json prints", f.cas)
	}
	return &n, nil
}

// errChanged is the error of a write whose --cas is not the index of the key.
func (f *keyFlags) errChanged(key string) error {
	return fmt.Errorf("key %q was not written: its modify index is not %s; read it again: wanfed kv get %s -o wide", key, f.cas, key)
}

func newKVPut() *cobra.Command {
	f := &keyFlags{}
	var flags uint64
	f.Command = addReadFlags(&cobra.Command{
		Use:   "put KEY VALUE",
		Short: "Write the value of a key",
		Long: `Write the value of a key. VALUE is the value itself, @FILE for the content of a
file, or - for stdin. A value has at most 512 KiB. With --cas the key is written
only if it has not changed since it was read.`,
		Example: `  wanfed kv put app/mode blue
  wanfed kv put app/cert @cert.pem
  wanfed kv put app/mode green --cas 42    # only if its modify index is 42
  wanfed kv put app/leader web1 --cas 0    # only if it does not exist`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && args[1] == "" { // an empty value is a value
				args = []string{args[0], "-"}
			}
			return exactArgs("KEY", "VALUE")(cmd, args)
		},
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		index, err := f.index()
		if err := errors.Join(err, requireHTTPS(cmd)); err != nil {
			return err
		}
		value, err := keyValue(cmd.InOrStdin(), args[1])
		if err != nil {
			return err
		}
		written, err := cl.PutKey(cmd.Context(), api.Key{Key: args[0], Value: value, Flags: flags}, index, cl.opts)
		if err == nil && !written {
			return f.errChanged(args[0])
		}
		return printWritten(out, "wrote key "+strconv.Quote(args[0]), err)
	})
	f.add(", or 0: only if it does not exist")
	f.Flags().Uint64Var(&flags, "flags", 0, "`number` that is stored with the value")
	f.ValidArgsFunction = completeArgs(completeKeys, completeFile)
	return f.Command
}

// keyValue returns the value that the argument text names.
func keyValue(stdin io.Reader, text string) ([]byte, error) {
	switch {
	case text == "-":
		return settings.ReadAll(stdin, "stdin", maxKeyValue)
	case strings.HasPrefix(text, "@"):
		return settings.ReadFile(text[1:], maxKeyValue)
	}
	return []byte(text), nil
}

// printWritten prints the outcome of a write. In JSON the outcome is an object.
func printWritten(out output.Printer, text string, err error) error {
	if err != nil {
		return refusalText(err)
	}
	return out.Print(map[string]string{"result": text}, func() error {
		_, err := fmt.Fprintln(out.W, output.Printable(text))
		return err
	})
}

func newKVDelete() *cobra.Command {
	f := &keyFlags{}
	var all bool
	f.Command = addReadFlags(&cobra.Command{
		Use:   "delete KEY",
		Short: "Delete a key, or all keys with a prefix",
		Example: `  wanfed kv delete app/mode
  wanfed kv delete app/mode --cas 42     # only if its modify index is 42
  wanfed kv delete app/ --recurse        # all keys that begin with app/`,
		Args: exactArgs("KEY"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		index, err := f.index()
		if err := errors.Join(err, requireHTTPS(cmd)); err != nil {
			return err
		}
		if all && index != nil {
			return usagef("--cas cannot be combined with --recurse")
		}
		if all {
			return printWritten(out, "deleted all keys that begin with "+strconv.Quote(args[0]),
				cl.DeleteKeys(cmd.Context(), args[0], cl.opts))
		}
		deleted, err := cl.DeleteKey(cmd.Context(), args[0], index, cl.opts)
		if err == nil && !deleted {
			return f.errChanged(args[0])
		}
		return printWritten(out, "deleted key "+strconv.Quote(args[0]), err)
	})
	f.add("")
	f.Flags().BoolVar(&all, "recurse", false, "delete all keys that begin with KEY")
	f.ValidArgsFunction = completeArgs(completeKeys)
	return f.Command
}

func newKVList() *cobra.Command {
	c := addReadFlags(&cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List keys",
		Example: `  wanfed kv list
  wanfed kv list app/ --datacenter dc2
  wanfed kv list app/ --output json | jq -r '.[].Key'`,
		Args: optionalArg("PREFIX"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		keys, _, err := cl.Keys(cmd.Context(), strings.Join(args, ""), cl.opts)
		if err != nil {
			return refusalText(err)
		}
		if keys == nil {
			keys = []api.Key{} // the JSON of no keys is []
		}
		return out.Print(keys, func() error {
			rows := [][]string{{"Key", "Size", "Index", "Session"}}
			for _, k := range keys {
				rows = append(rows, []string{
					k.Key, output.Size(int64(len(k.Value))), strconv.FormatUint(k.ModifyIndex, 10), cmp.Or(k.Session, "-"),
				})
			}
			return out.Table(rows)
		})
	})
	c.ValidArgsFunction = completeArgs(completeKeys)
	return c
}

// entryType is the type of the resources of keys.
var entryType = api.ResourceTypeName{Group: "kv", GroupVersion: "v1", Kind: "Entry"}

func newKVWatch() *cobra.Command {
	c := addReadFlags(&cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Watch keys",
		Long: `Print the keys that begin with PREFIX and their values, and then every change,
until SIGINT or SIGTERM. The command fails when the server closes the watch or the
connection is lost. With --output json each event is one line of JSON, as printed
by: wanfed resource watch kv/v1/Entry.`,
		Example: `  wanfed kv watch app/
  wanfed kv watch app/ --output json | jq -c .resource.id.name`,
		Args: optionalArg("PREFIX"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		ctx := cmd.Context()
		opts := api.ResourceOptions{Datacenter: cl.opts.Datacenter, Prefix: strings.Join(args, "")}
		for ev, err := range cl.WatchResources(ctx, entryType, api.Tenancy{}, opts) {
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = printKeyEvent(out, ev)
			}
			if err != nil {
				return refusalText(err)
			}
		}
		return nil
	})
	c.ValidArgsFunction = completeArgs(completeKeys)
	return c
}

func printKeyEvent(out output.Printer, ev api.ResourceEvent) error {
	if out.Format == output.JSON {
		return output.JSONLine(out.W, ev)
	}
	key := output.Printable(ev.Resource.ID.Name)
	switch ev.Type {
	case api.EventUpsert:
		var e pb.KVEntry
		if err := protojson.Unmarshal(jsonObject(ev.Resource.Data), &e); err != nil {
			return fmt.Errorf("value of key %q: %w", key, err)
		}
		_, err := fmt.Fprintf(out.W, "put     %s  %s\n", key, output.Printable(string(e.GetValue())))
		return err
	case api.EventDelete:
		_, err := fmt.Fprintf(out.W, "delete  %s\n", key)
		return err
	}
	_, err := fmt.Fprintln(out.W, "changes follow")
	return err
}

// jsonObject returns data, or an empty object if there is none.
func jsonObject(data json.RawMessage) []byte {
	if len(data) == 0 {
		return []byte("{}")
	}
	return data
}
