/** The card of each tool by its name. Other tools are shown as input and output. */
import { advisor } from "@/features/tools/advisor";
import { askUserQuestion } from "@/features/tools/ask_user_question";
import { attachFile } from "@/features/tools/attach_file";
import { createWorkspace } from "@/features/tools/create_workspace";
import { editFiles } from "@/features/tools/edit_files";
import { execute } from "@/features/tools/execute";
import { findTools } from "@/features/tools/find_tools";
import { interruptAgent } from "@/features/tools/interrupt_agent";
import { listAgents } from "@/features/tools/list_agents";
import { listSubagentModels } from "@/features/tools/list_subagent_models";
import { listTemplates } from "@/features/tools/list_templates";
import { messageAgent } from "@/features/tools/message_agent";
import { processList } from "@/features/tools/process_list";
import { processOutput } from "@/features/tools/process_output";
import { processSignal } from "@/features/tools/process_signal";
import { proposePlan } from "@/features/tools/propose_plan";
import { readAgentReport } from "@/features/tools/read_agent_report";
import { readFile } from "@/features/tools/read_file";
import { readSkill } from "@/features/tools/read_skill";
import { readSkillFile } from "@/features/tools/read_skill_file";
import { readTemplate } from "@/features/tools/read_template";
import { spawnAgent } from "@/features/tools/spawn_agent";
import { startWorkspace } from "@/features/tools/start_workspace";
import { stopWorkspace } from "@/features/tools/stop_workspace";
import { waitAgent } from "@/features/tools/wait_agent";
import { webSearch } from "@/features/tools/web_search";
import { writeFile } from "@/features/tools/write_file";
import type { Tool } from "./tool_display";
import { unknownTool } from "./unknown_tool";

export const TOOLS: Record<string, Tool> = {
  advisor,
  ask_user_question: askUserQuestion,
  attach_file: attachFile,
  create_workspace: createWorkspace,
  edit_files: editFiles,
  execute,
  find_tools: findTools,
  interrupt_agent: interruptAgent,
  list_agents: listAgents,
  list_subagent_models: listSubagentModels,
  list_templates: listTemplates,
  message_agent: messageAgent,
  process_list: processList,
  process_output: processOutput,
  process_signal: processSignal,
  propose_plan: proposePlan,
  read_agent_report: readAgentReport,
  read_file: readFile,
  read_skill: readSkill,
  read_skill_file: readSkillFile,
  read_template: readTemplate,
  spawn_agent: spawnAgent,
  start_workspace: startWorkspace,
  stop_workspace: stopWorkspace,
  wait_agent: waitAgent,
  web_search: webSearch,
  write_file: writeFile,
};

export function toolOf(name: string): Tool {
  return (Object.hasOwn(TOOLS, name) ? TOOLS[name] : undefined) ?? unknownTool;
}
