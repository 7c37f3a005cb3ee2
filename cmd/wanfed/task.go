// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/resource"
)

func newTask() *cobra.Command {
	c := newGroup("task", "Manage the tasks of sync daemons",
		newTaskList(), newTaskRead(), newTaskCreate(), newTaskEnable(true), newTaskEnable(false), newTaskRun(),
		newTaskApprove(), newTaskDelete(), newTaskHistory(), newTaskLog(), newTaskState())
	c.Long = `Manage the tasks of sync daemons. Tasks are resources of the servers: these
commands need a server, and no daemon. See "wanfed sync" for the daemon.`
	c.Example = `  wanfed task list
  wanfed task create --task-file firewall.hcl
  wanfed task run firewall --plan
  wanfed task history firewall`
	return c
}

// taskTypes are the names of the types in the HTTP API.
var (
	taskType  = api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "Task"}
	runType   = api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "Run"}
	stateType = api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "State"}
)

// decodeData decodes the data of a resource of the HTTP API.
func decodeData[T proto.Message](r api.Resource, into T) (T, error) {
	err := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(r.Data, into)
	if err != nil {
		err = fmt.Errorf("decode %s %s: %w", r.ID.Type, r.ID.Name, err)
	}
	return into, err
}

// readTask reads a task.
func readTask(ctx context.Context, cl client, name string) (api.Resource, *pb.Task, error) {
	r, err := cl.ReadResource(ctx, api.ResourceID{Type: taskType, Name: name},
		api.ResourceOptions{Datacenter: cl.opts.Datacenter, Consistent: true})
	if api.IsStatus(err, 404) {
		return r, nil, fmt.Errorf("task %q does not exist; see: wanfed task list", name)
	}
	if err != nil {
		return r, nil, err
	}
	t, err := decodeData(r, &pb.Task{})
	return r, t, err
}

// changeTask reads a task, calls change, and writes the task, until no other
// write interferes.
func changeTask(ctx context.Context, cl client, name string, change func(r *api.Resource, t *pb.Task) error) error {
	for try := 1; ; try++ {
		r, t, err := readTask(ctx, cl, name)
		if err == nil {
			err = change(&r, t)
		}
		if err != nil {
			return err
		}
		if r.Data, err = protojson.Marshal(t); err != nil {
			return err
		}
		_, err = cl.WriteResource(ctx, r, api.ResourceOptions{Datacenter: cl.opts.Datacenter})
		if !api.IsStatus(err, 409) || try == 5 {
			return err
		}
	}
}

// addTaskFlags makes c a command about one task.
func addTaskFlags(
	c *cobra.Command, writes bool, run func(cmd *cobra.Command, name string, cl client, out output.Printer) error,
) *cobra.Command {
	c.Args = exactArgs("NAME")
	c.ValidArgsFunction = completeArgs(completeResources(taskType))
	return addReadFlags(c, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		if err := task.CheckName(args[0]); err != nil {
			return usageError{err}
		}
		if writes {
			if err := requireHTTPS(cmd); err != nil {
				return err
			}
		}
		return run(cmd, args[0], cl, out)
	})
}

func newTaskList() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "list",
		Short: "List the tasks",
		Long: `List the tasks of a datacenter. Ready is "yes", or the reason why the task does not
run, such as NoDaemon if no daemon of its group runs. Applied is "yes" if the last
run succeeded.`,
		Example: `  wanfed task list
  wanfed task list --output json | jq -r '.[].id.name'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		all := []api.Resource{}
		for r, err := range cl.Resources(cmd.Context(), taskType, api.Tenancy{}, api.ResourceOptions{Datacenter: cl.opts.Datacenter}) {
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		live, err := liveGroups(cmd.Context(), cl)
		if err != nil {
			return err
		}
		return out.Print(all, func() error {
			rows := [][]string{{"Name", "Group", "Driver", "Enabled", "Ready", "Applied", "Conditions"}}
			for _, r := range all {
				t, err := decodeData(r, &pb.Task{})
				if err != nil {
					return err
				}
				rows = append(rows, []string{r.ID.Name, t.Group, t.Driver, yesNo(t.GetEnabled()),
					readyText(r, t, live), conditionText(r, "Applied"), conditionsText(t)})
			}
			return out.Table(rows)
		})
	})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// conditionText returns "yes", or the reason of a condition that is not true.
func conditionText(r api.Resource, typ string) string {
	for _, c := range r.Status[task.StatusKey].Conditions {
		if c.Type == typ && c.State == "STATE_TRUE" {
			return "yes"
		} else if c.Type == typ {
			return cmp.Or(c.Reason, "no")
		}
	}
	return "-"
}

// conditionsText returns the kinds of the conditions of a task.
func conditionsText(t *pb.Task) string {
	var kinds []string
	for _, q := range t.Conditions {
		kinds = append(kinds, q.Kind)
	}
	return cmp.Or(strings.Join(kinds, ","), "-")
}

func newTaskRead() *cobra.Command {
	return addTaskFlags(&cobra.Command{
		Use:   "read NAME",
		Short: "Show a task and its state",
		Long: `Show a task: its conditions, the outcome of its last runs, and what it waits for.
With --output json the whole resource is printed.`,
		Example: `  wanfed task read firewall
  wanfed task read firewall --output json`,
	}, false, func(cmd *cobra.Command, name string, cl client, out output.Printer) error {
		r, t, err := readTask(cmd.Context(), cl, name)
		if err != nil {
			return err
		}
		live, err := liveGroups(cmd.Context(), cl)
		if err != nil {
			return err
		}
		return out.Print(r, func() error {
			rows := [][]string{
				{"Name", name}, {"Description", cmp.Or(t.Description, "-")}, {"Group", t.Group},
				{"Driver", t.Driver}, {"Enabled", yesNo(t.GetEnabled())}, {"Conditions", conditionsText(t)},
			}
			if t.Terraform != nil {
				rows = append(rows, []string{"Module", strings.TrimSpace(t.Terraform.Module + " " + t.Terraform.Version)},
					[]string{"Providers", cmp.Or(strings.Join(t.Terraform.Providers, ", "), "-")})
			}
			if t.Exec != nil {
				rows = append(rows, []string{"Command", strings.Join(t.Exec.Command, " ")})
			}
			for _, c := range r.Status[task.StatusKey].Conditions {
				text := conditionText(r, c.Type)
				if c.Message != "" {
					text += ": " + c.Message
				}
				if c.Type == "Ready" && readyText(r, t, live) == "NoDaemon" {
					text = fmt.Sprintf("NoDaemon: no daemon of the group %s runs; the last one reported: %s", t.Group, text)
				}
				rows = append(rows, []string{c.Type, text})
			}
			return output.WriteFields(cmd.OutOrStdout(), rows)
		})
	})
}

func newTaskEnable(enable bool) *cobra.Command {
	verb, long := "enable", "Enable a task. A daemon runs it if its inputs have changed since its last run."
	if !enable {
		verb, long = "disable", "Disable a task. A run in progress continues, and no further run starts."
	}
	return addTaskFlags(&cobra.Command{
		Use:     verb + " NAME",
		Short:   strings.ToUpper(verb[:1]) + verb[1:] + " a task",
		Long:    long,
		Example: "  wanfed task " + verb + " firewall",
	}, true, func(cmd *cobra.Command, name string, cl client, _ output.Printer) error {
		err := changeTask(cmd.Context(), cl, name, func(_ *api.Resource, t *pb.Task) error {
			t.Enabled = &enable
			return nil
		})
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "task %s is %sd\n", name, verb)
		}
		return err
	})
}

func newTaskRun() *cobra.Command {
	var plan, destroy, detach bool
	c := addTaskFlags(&cobra.Command{
		Use:   "run NAME",
		Short: "Run a task now",
		Long: `Run a task now, also if nothing has changed, and print the result. A daemon runs
it; --plan changes nothing and prints what a run would change. The guard of the
task applies.`,
		Example: `  wanfed task run firewall
  wanfed task run firewall --plan`,
	}, true, func(cmd *cobra.Command, name string, cl client, out output.Printer) error {
		mode := driver.Apply
		switch {
		case plan && destroy:
			return usagef("--plan and --destroy exclude each other")
		case plan:
			mode = driver.Plan
		case destroy:
			mode = driver.Destroy
		}
		id := resource.NewUID()
		err := changeTask(cmd.Context(), cl, name, func(r *api.Resource, t *pb.Task) error {
			if !t.GetEnabled() {
				return fmt.Errorf("task %s is disabled: enable it with wanfed task enable %s", name, name)
			}
			if r.Metadata == nil {
				r.Metadata = map[string]string{}
			}
			r.Metadata[task.RequestKey] = id + " " + string(mode)
			return nil
		})
		if err != nil || detach {
			return err
		}
		stop := output.Waiting(cmd.ErrOrStderr(), "waiting for a daemon to run "+name)
		record, err := awaitRun(cmd.Context(), cl, name, id)
		stop()
		if err != nil {
			return err
		}
		if err := out.Print(record, func() error { printRun(cmd.OutOrStdout(), id, record); return nil }); err != nil {
			return err
		}
		if record.Result != task.Succeeded {
			return fmt.Errorf("run %s of task %s: %s: %s", id, name, record.Result, record.Error)
		}
		return nil
	})
	c.Flags().BoolVar(&plan, "plan", false, "change nothing, and print the plan")
	c.Flags().BoolVar(&destroy, "destroy", false, "destroy what the task has created")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait for the result")
	return c
}

// awaitRun waits until a run has ended.
func awaitRun(ctx context.Context, cl client, name, id string) (*pb.TaskRun, error) {
	for ev, err := range cl.WatchResources(ctx, runType, api.Tenancy{},
		api.ResourceOptions{Datacenter: cl.opts.Datacenter, Prefix: name + "." + id}) {
		if err != nil {
			return nil, err
		}
		if ev.Type != api.EventUpsert {
			continue
		}
		record, err := decodeData(ev.Resource, &pb.TaskRun{})
		if err != nil || record.Result != task.Running {
			return record, err
		}
	}
	return nil, errors.New("the watch of the run ended")
}

// printRun prints the result of a run.
func printRun(w io.Writer, id string, r *pb.TaskRun) {
	printLines(w, r.Plan)
	format := "%d added, %d changed, %d destroyed"
	if r.Mode == string(driver.Plan) || r.Result == task.Refused { // nothing was changed
		format = "%d to add, %d to change, %d to destroy"
	}
	ch := r.GetChanges()
	fmt.Fprintf(w, "run %s: %s in %v: "+format+"\n", id, r.Result,
		r.EndedAt.AsTime().Sub(r.StartedAt.AsTime()).Round(time.Millisecond), ch.GetAdd(), ch.GetChange(), ch.GetDestroy())
}

// printLines prints the output of a program without its control characters.
func printLines(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(w, output.Printable(strings.TrimSuffix(line, "\n")))
	}
}

func newTaskApprove() *cobra.Command {
	return addTaskFlags(&cobra.Command{
		Use:   "approve NAME",
		Short: "Approve the run that the guard of a task holds back",
		Long: `Approve the run that the guard of a task holds back. The approval is valid for the
present inputs. If they change before the run, the guard decides again.`,
		Example: `  wanfed task log firewall     # the plan
  wanfed task approve firewall`,
	}, true, func(cmd *cobra.Command, name string, cl client, _ output.Printer) error {
		opts := api.ResourceOptions{Datacenter: cl.opts.Datacenter, Consistent: true}
		for try := 1; ; try++ {
			r, err := cl.ReadResource(cmd.Context(), api.ResourceID{Type: stateType, Name: name}, opts)
			if err != nil {
				return fmt.Errorf("read the state of task %s: %w", name, err)
			}
			st, err := decodeData(r, &pb.TaskState{})
			if err != nil {
				return err
			}
			if st.Refused == "" {
				return fmt.Errorf("the guard holds back no run of task %s", name)
			}
			st.Approved = st.Refused
			if r.Data, err = protojson.Marshal(st); err != nil {
				return err
			}
			if _, err = cl.WriteResource(cmd.Context(), r, api.ResourceOptions{Datacenter: cl.opts.Datacenter}); err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "the run of task %s is approved\n", name)
			}
			if !api.IsStatus(err, 409) || try == 5 {
				return err
			}
		}
	})
}

func newTaskDelete() *cobra.Command {
	var keep, destroy bool
	c := addTaskFlags(&cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a task, and keep or destroy its infrastructure",
		Long: `Delete a task. With --keep, the infrastructure stays and is not managed any more.
With --destroy, a daemon destroys it first. The state of the task is deleted at
the end. The deletion needs a daemon of the task's group.`,
		Example: `  wanfed task delete firewall --keep
  wanfed task delete firewall --destroy`,
	}, true, func(cmd *cobra.Command, name string, cl client, _ output.Printer) error {
		if keep == destroy {
			return usagef("one of --keep and --destroy is required")
		}
		err := changeTask(cmd.Context(), cl, name, func(_ *api.Resource, t *pb.Task) error {
			t.OnDelete = task.Keep
			if destroy {
				t.OnDelete = task.Destroy
			}
			return nil
		})
		if err != nil {
			return err
		}
		id := api.ResourceID{Type: taskType, Name: name}
		opts := api.ResourceOptions{Datacenter: cl.opts.Datacenter}
		if err := cl.DeleteResource(cmd.Context(), id, opts); err != nil {
			return err
		}
		stop := output.Waiting(cmd.ErrOrStderr(), "waiting for a daemon to delete "+name)
		defer stop()
		opts.Prefix = name
		for ev, err := range cl.WatchResources(cmd.Context(), taskType, api.Tenancy{}, opts) {
			switch {
			case err != nil:
				return err
			case ev.Type == api.EventDelete && ev.Resource.ID.Name == name:
				fmt.Fprintf(cmd.OutOrStdout(), "task %s is deleted\n", name)
				return nil
			case ev.Type == api.EventEndOfSnapshot:
				if _, _, err := readTask(cmd.Context(), cl, name); err != nil {
					fmt.Fprintf(cmd.OutOrStdout(), "task %s is deleted\n", name)
					return nil
				}
			}
		}
		return nil
	})
	c.Flags().BoolVar(&keep, "keep", false, "keep the infrastructure")
	c.Flags().BoolVar(&destroy, "destroy", false, "destroy the infrastructure")
	return c
}

// runOf is a run with its id, for JSON.
type runOf struct {
	id   string
	run  *pb.TaskRun
	json api.Resource
}

// readRuns returns the runs of a task, newest first.
func readRuns(ctx context.Context, cl client, name string) (runs []runOf, err error) {
	for r, err := range cl.Resources(ctx, runType, api.Tenancy{},
		api.ResourceOptions{Datacenter: cl.opts.Datacenter, Prefix: name + "."}) {
		if err != nil {
			return nil, err
		}
		record, err := decodeData(r, &pb.TaskRun{})
		if err != nil {
			return nil, err
		}
		runs = append(runs, runOf{strings.TrimPrefix(r.ID.Name, name+"."), record, r})
	}
	slices.SortFunc(runs, func(a, b runOf) int { return strings.Compare(b.id, a.id) })
	return runs, nil
}

func newTaskHistory() *cobra.Command {
	return addTaskFlags(&cobra.Command{
		Use:   "history NAME",
		Short: "List the runs of a task",
		Long: `List the newest 50 runs of a task, newest first. Trigger is why the run was started.
With --output wide the numbers of added, changed and destroyed resources, the
daemon and the error are printed.`,
		Example: `  wanfed task history firewall
  wanfed task history firewall --output json`,
	}, false, func(cmd *cobra.Command, name string, cl client, out output.Printer) error {
		if _, _, err := readTask(cmd.Context(), cl, name); err != nil {
			return err
		}
		runs, err := readRuns(cmd.Context(), cl, name)
		if err != nil {
			return err
		}
		all := make([]api.Resource, len(runs))
		for i, r := range runs {
			all[i] = r.json
		}
		return out.Print(all, func() error {
			rows := [][]string{{"Run", "Started", "Mode", "Trigger", "Result"}}
			if out.IsWide() {
				rows[0] = append(rows[0], "Changes", "Daemon", "Error")
			}
			for _, r := range runs {
				row := []string{r.id, output.Timestamp(timeOf(r.run.StartedAt)), r.run.Mode, r.run.Trigger, r.run.Result}
				if ch := r.run.GetChanges(); out.IsWide() {
					row = append(row, fmt.Sprintf("+%d ~%d -%d", ch.GetAdd(), ch.GetChange(), ch.GetDestroy()), r.run.Instance,
						cmp.Or(r.run.Error, "-"))
				}
				rows = append(rows, row)
			}
			return out.Table(rows)
		})
	})
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func newTaskLog() *cobra.Command {
	var run string
	c := addTaskFlags(&cobra.Command{
		Use:   "log NAME",
		Short: "Print plan and output of a run",
		Long:  `Print the plan and the end of the output of a run: the last one, or that of --run.`,
		Example: `  wanfed task log firewall
  wanfed task log firewall --run 01JDQ3YV8Q6Z7X8W9V0T1S2R3P`,
	}, false, func(cmd *cobra.Command, name string, cl client, out output.Printer) error {
		runs, err := readRuns(cmd.Context(), cl, name)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(runs, func(r runOf) bool { return run == "" || r.id == run })
		if at < 0 {
			return fmt.Errorf("task %s has no such run; see: wanfed task history %s", name, name)
		}
		r := runs[at]
		return out.Print(r.json, func() error {
			w := cmd.OutOrStdout()
			printLines(w, r.run.Plan)
			printLines(w, r.run.Log)
			if r.run.Error != "" {
				fmt.Fprintf(w, "error: %s\n", output.Printable(r.run.Error))
			}
			return nil
		})
	})
	c.Flags().StringVar(&run, "run", "", "`id` of the run (default: the last one)")
	return c
}

func newTaskCreate() *cobra.Command {
	var file string
	c := addReadFlags(&cobra.Command{
		Use:   "create",
		Short: "Create a task from a configuration file",
		Long: `Create a task from a configuration file that has one block "task" and nothing else.
A daemon of the task's group runs it at once. A file with the option enabled = false
creates a task that does not run.`,
		Example: `  wanfed task create --task-file firewall.hcl`,
		Args:    noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		if file == "" {
			return usagef("--task-file is required")
		}
		if err := requireHTTPS(cmd); err != nil {
			return err
		}
		cfg, err := config.Load([]string{file}, os.Getenv)
		if err != nil {
			return usageError{err}
		}
		if len(cfg.Tasks) != 1 {
			return usagef("%s has %d tasks: it must have one", file, len(cfg.Tasks))
		}
		for _, w := range cfg.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
		}
		t := cfg.Tasks[0]
		t.Task.Origin = task.OriginAPI
		r := api.Resource{ID: api.ResourceID{Type: taskType, Name: t.Name}, Version: resource.NewVersion}
		if r.Data, err = protojson.Marshal(t.Task); err != nil {
			return err
		}
		stored, err := cl.WriteResource(cmd.Context(), r, api.ResourceOptions{Datacenter: cl.opts.Datacenter})
		if api.IsStatus(err, 409) {
			return fmt.Errorf("task %s exists already; delete it first with: wanfed task delete %s", t.Name, t.Name)
		}
		if err != nil {
			return err
		}
		return out.Print(stored, func() error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "task %s is created\n", t.Name)
			return err
		})
	})
	c.Flags().StringVar(&file, "task-file", "", "HCL or JSON (.json) `file` with one task")
	return c
}
